"""Drafts as the papers make them: a chain, and the dynamic tree.

The best frontier nodes are expanded level by level, the best of all candidates are sent: EAGLE-2 (arXiv 2406.16858),
section 4; used unchanged by Mixture of Attentions (arXiv 2410.03804).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from moa_shared.drafting.base import Drafter
from moa_shared.drafting.guesses import LEAST_LOG_SURVIVAL, MOST_PLACES, TextGuesser
from moa_shared.sampling.coupling import draft_candidates, draft_scores
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree, path_to, pick


@dataclass(frozen=True, slots=True)
class TreeShape:
    depth: int = 6  # levels of the tree (the authors' depth parameter is one more)
    breadth: int = 8  # candidates of each expanded node, and nodes expanded per level
    nodes: int = 62  # sent to the target


def draft_tree(
    drafter: Drafter, shape: TreeShape, sampling: Sampling, guesser: TextGuesser | None = None
) -> tuple[DraftTree, CandidatePool, list[int]]:
    """A tree below the newest committed token, its candidate pool, and each node's index there.

    `guesser`: of the same conversation, to merge with the drafter's candidates (not in the paper); what the text
    suggests may go deeper than the drafter was asked to.
    """
    pool = CandidatePool()
    depth = min(shape.depth, drafter.most_depth or shape.depth)
    added: dict[int, int] = {ROOT: ROOT}  # pool index to the drafter's node number
    frontier = [ROOT]
    logits = drafter.begin()
    for level in range(depth):
        positions = [drafter.next_position + level] * len(frontier)
        before = TextBefore(drafter.tokens, [pool.path_to(at) for at in frontier]) if sampling.reads_text else None
        scores, tokens = draft_candidates(logits, positions, sampling, shape.breadth, drafter.token_ids, before)
        new: list[int] = []
        for parent, row_tokens, row_scores in zip(frontier, tokens.tolist(), scores.tolist(), strict=True):
            new += pool.add(parent, row_tokens, row_scores)
        if level + 1 == depth:
            break
        frontier = [index for index in pool.best(new, shape.breadth) if pool.scores[index] > float("-inf")]
        if not frontier:
            break
        logits = drafter.expand(
            [pool.tokens[index] for index in frontier], [added[pool.parents[index]] for index in frontier]
        )
        for index in frontier:
            added[index] = len(added) - 1
    if guesser is not None:
        pool.add_guesses(guesser, shape.nodes, LEAST_LOG_SURVIVAL)
    tree, chosen = pool.tree(shape.nodes)
    return tree, pool, chosen


def draft_chain(drafter: Drafter, length: int, sampling: Sampling, guesser: TextGuesser | None = None) -> DraftTree:
    """`length` tokens below the newest committed one, or as many as the drafter guesses."""
    tokens: list[int] = []
    length = min(length, drafter.most_depth or length)
    logits = drafter.begin() if length else np.empty((1, 0), dtype=np.float32)
    for step in range(length):
        before = TextBefore(drafter.tokens, [tokens]) if sampling.reads_text else None
        scores = draft_scores(logits, [drafter.next_position + step], sampling, drafter.token_ids, before)
        column = int(scores.argmax())
        guesses = guesser.guesses(tokens) if guesser is not None else []
        if guesses and guesses[0][1] > float(scores[0, column]):
            tokens.append(guesses[0][0])
        else:
            tokens.append(column if drafter.token_ids is None else int(drafter.token_ids[column]))
        if step + 1 < length:
            logits = drafter.expand([tokens[-1]], [step - 1])
    return DraftTree.chain(tokens)


@dataclass(slots=True)
class CandidatePool:
    """The candidates, added level by level."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)  # pool indices
    scores: list[float] = field(default_factory=list)

    def add(self, parent: int, tokens: Sequence[int], log_scores: Sequence[float]) -> range:
        """Adds the children of one candidate (-1: the root); returns their pool indices."""
        base = self._score(parent)
        first = len(self.tokens)
        for token, log_score in zip(tokens, log_scores, strict=True):
            self.tokens.append(token)
            self.parents.append(parent)
            self.scores.append(base + min(0.0, log_score))
        return range(first, len(self.tokens))

    def add_guesses(self, guesser: TextGuesser, nodes: int, floor: float) -> None:
        """Adds what the text suggests after the root and after each of the `nodes` best candidates.

        A candidate that is already there gets the better of both scores.
        """
        held = {
            (parent, token): index for index, (parent, token) in enumerate(zip(self.parents, self.tokens, strict=True))
        }
        starts = [ROOT, *self.best(range(len(self.tokens)), nodes)]
        below = [(-self._score(start), start) for start in starts]
        heapq.heapify(below)
        for _ in range(len(starts) + MOST_PLACES):
            if not below:
                return
            above_score, at = heapq.heappop(below)
            for token, log_chance in guesser.guesses(self.path_to(at)):
                score = log_chance - above_score
                if score < floor:
                    break  # the others are less likely
                index = held.get((at, token))
                if index is None:
                    index = held[at, token] = self.add(at, [token], [0.0])[0]
                elif self.scores[index] >= score:
                    continue  # the drafter thinks better of it; what follows is added from there
                self.scores[index] = score
                heapq.heappush(below, (-score, index))

    def path_to(self, index: int) -> list[int]:
        """The tokens from the root's child down to a candidate; none for the root."""
        return [self.tokens[above] for above in path_to(self.parents, index)]

    def _score(self, index: int) -> float:
        return 0.0 if index == ROOT else self.scores[index]

    def best(self, candidates: Sequence[int], count: int) -> list[int]:
        return sorted(candidates, key=lambda index: (-self.scores[index], index))[:count]

    def tree(self, nodes: int) -> tuple[DraftTree, list[int]]:
        """The tree of the `nodes` best possible candidates, in pool order, and their pool indices."""
        possible = [index for index, score in enumerate(self.scores) if score > float("-inf")]
        chosen = sorted(self.best(possible, nodes))
        tokens = tuple(self.tokens[index] for index in chosen)
        return DraftTree(tokens, tuple(pick(self.parents, chosen))), chosen

"""The candidates of one dynamic tree, and which of them are sent.

Pure. A candidate's score is the sum of log-scores along its path, in float64, so that ties are those of equal inputs.
Invariant: a candidate comes after its parent in the pool; among equal scores the earlier one wins, so that no child
is ever chosen without its parent (its score is at most the parent's).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from moa_shared.drafting.guesses.text_guesser import MOST_PLACES, TextGuesser
from moa_shared.tree.arithmetic import ROOT, path_to, pick
from moa_shared.tree.draft_tree import DraftTree


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

        Args:
            floor: least score of a candidate that is added.
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
        """The `count` best of some candidates, best first."""
        return sorted(candidates, key=lambda index: (-self.scores[index], index))[:count]

    def tree(self, nodes: int) -> tuple[DraftTree, list[int]]:
        """The tree of the `nodes` best possible candidates, in pool order, and their pool indices."""
        possible = [index for index, score in enumerate(self.scores) if score > float("-inf")]
        chosen = sorted(self.best(possible, nodes))
        tokens = tuple(self.tokens[index] for index in chosen)
        return DraftTree(tokens, tuple(pick(self.parents, chosen))), chosen

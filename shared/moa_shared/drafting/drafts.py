"""What drafting needs of a drafter, and drafts as the papers make them: a chain, and the dynamic tree.

The best frontier nodes are expanded level by level, the best of all candidates are sent: EAGLE-2 (arXiv 2406.16858),
section 4; used unchanged by Mixture of Attentions (arXiv 2410.03804).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree, path_to

Rows = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int64]


class Drafter(Protocol):
    """A model that guesses what the target will say next."""

    @property
    def token_ids(self) -> TokenIds | None: ...  # the target's token of each column; None: the same

    @property
    def tokens(self) -> Sequence[int]: ...  # the committed ones

    @property
    def next_position(self) -> int: ...  # of the first token to guess: the number of committed tokens

    # The levels that come with the first one, and the most that a draft has; None: each takes a step, no limit.
    @property
    def most_depth(self) -> int | None: ...

    def begin(self) -> Rows:
        """Drops any draft under way; logits [1, columns], float32, of the token after the newest committed one."""

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        """Adds nodes (parents: numbers in order of addition, -1 the root); logits after each, [nodes, columns]."""

    def extend(self, tokens: Sequence[int]) -> tuple[int, ...] | None:
        """Appends committed tokens; former numbers of the draft nodes below the last of them, now numbered 0, 1, ...

        None: no draft is left, the next must `begin`.
        """


class ConversationDrafter(Drafter, Protocol):
    """The state of one conversation's drafter, whatever its kind."""

    @property
    def tokens(self) -> list[int]: ...

    def crop(self, length: int) -> None: ...  # forgets everything from this position on

    def append_memory(self, start: int, rows: Rows) -> None:
        """Adds memory rows, [rows, memory width] float32, of positions from `start`."""

    def append_reused_state(self, start: int, rows: Rows) -> None:
        """Adds the state that enters the first reused layer, [rows, hidden size] float32."""

    def catch_up(self, most: int) -> bool:
        """Reads up to `most` committed tokens ahead of the next draft; whether that can begin without reading many."""


@dataclass(frozen=True, slots=True)
class TreeShape:
    depth: int = 6  # levels of the tree (the authors' depth parameter is one more)
    breadth: int = 8  # candidates of each expanded node, and nodes expanded per level
    nodes: int = 62  # sent to the target


class Candidates(NamedTuple):
    """What may be sent, level by level."""

    tokens: list[int]
    parents: list[int]  # candidates
    scores: list[float]

    def best(self, candidates: Sequence[int], count: int) -> list[int]:
        """The best possible ones; of equal ones the first, so that parents come before children."""
        possible = [index for index in candidates if self.scores[index] > -math.inf]
        return sorted(possible, key=lambda index: (-self.scores[index], index))[:count]

    def tree(self, nodes: int) -> tuple[DraftTree, list[int]]:
        """The tree of the `nodes` best ones, in their order, and which these are."""
        chosen = sorted(self.best(range(len(self.tokens)), nodes))
        return DraftTree(tuple(self.tokens), tuple(self.parents)).pick(chosen), chosen


def draft_tree(drafter: Drafter, shape: TreeShape, sampling: Sampling) -> DraftTree:
    return find_candidates(drafter, shape, sampling).tree(shape.nodes)[0]


def find_candidates(drafter: Drafter, shape: TreeShape, sampling: Sampling) -> Candidates:
    candidates = Candidates([], [], [])
    tokens, parents, scores = candidates
    depth = min(shape.depth, drafter.most_depth or shape.depth)
    added: dict[int, int] = {ROOT: ROOT}  # candidate to the drafter's node number
    frontier, logits = [ROOT], drafter.begin()
    for level in range(depth):
        positions = [drafter.next_position + level] * len(frontier)
        paths = [[tokens[above] for above in path_to(parents, at)] for at in frontier] if sampling.reads_text else []
        before = TextBefore(drafter.tokens, paths) if sampling.reads_text else None
        best, found = draft_candidates(logits, positions, sampling, shape.breadth, drafter.token_ids, before)
        first = len(tokens)
        for parent, row_tokens, row_scores in zip(frontier, found.tolist(), best.tolist(), strict=True):
            base = scores[parent] if parent != ROOT else 0.0
            tokens += row_tokens
            parents += [parent] * len(row_tokens)
            scores += [base + min(0.0, score) for score in row_scores]
        frontier = candidates.best(range(first, len(tokens)), shape.breadth)
        if level + 1 == depth or not frontier:
            break
        logits = drafter.expand([tokens[index] for index in frontier], [added[parents[index]] for index in frontier])
        for index in frontier:
            added[index] = len(added) - 1
    return candidates


def draft_chain(drafter: Drafter, length: int, sampling: Sampling) -> DraftTree:
    """`length` tokens below the newest committed one, or as many as the drafter guesses."""
    return draft_tree(drafter, TreeShape(length, 1, length), sampling) if length else DraftTree((), ())

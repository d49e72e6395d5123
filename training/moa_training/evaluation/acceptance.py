"""Acceptance of drafts, as the verifier would have it: what of a draft follows the target's text is counted.

This is the real verification, since a verdict depends only on the text: the noise by which it was sampled is that
by which drafts are ranked. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from moa_shared.drafting import Drafter, TextGuesser, draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree, longest_path


@dataclass(frozen=True, slots=True)
class DraftShape:
    """How drafts are made: a chain of `nodes` where `tree` is None."""

    nodes: int
    tree: TreeShape | None = None
    merges_copies: bool = False  # trees also hold what the conversation suggests

    @property
    def name(self) -> str:
        copies = " and copies" if self.merges_copies else ""
        return f"chain of {self.nodes}" if self.tree is None else f"tree of {self.nodes}{copies}"


@dataclass(slots=True)
class Acceptance:
    """Counts over verifications: `accepted`, verifications by number of accepted drafts."""

    accepted: list[int] = field(default_factory=list)
    draft_seconds: float = field(default=0.0, compare=False)  # spent on drafts, all together

    def add(self, count: int, times: int = 1) -> None:
        self.accepted += [0] * (count + 1 - len(self.accepted))
        self.accepted[count] += times

    def merge(self, other: Acceptance) -> None:
        self.draft_seconds += other.draft_seconds
        for count, times in enumerate(other.accepted):
            self.add(count, times)

    @property
    def forwards(self) -> int:
        return sum(self.accepted)

    @property
    def length(self) -> float:
        """Mean acceptance length: accepted drafts and the bonus token, per target forward."""
        drafts = sum(count * times for count, times in enumerate(self.accepted))
        return drafts / self.forwards + 1 if self.forwards else 0.0

    @property
    def draft_ms(self) -> float:
        """Mean time of a draft, reading what was committed since the last one included."""
        return 1e3 * self.draft_seconds / self.forwards if self.forwards else 0.0

    @property
    def by_position(self) -> list[float]:
        """Share of accepted guesses at each depth, among those whose parents were accepted."""
        reached = [sum(self.accepted[depth:]) for depth in range(len(self.accepted))]
        return [after / before for before, after in pairwise(reached) if before]


def make_draft(
    drafter: Drafter, shape: DraftShape, room: int, guesser: TextGuesser | None, sampling: Sampling
) -> DraftTree:
    """A draft of a shape; of a chain at most `room` nodes."""
    if shape.tree is not None:
        return draft_tree(drafter, shape.tree, sampling, guesser)[0]
    return draft_chain(drafter, min(shape.nodes, room), sampling)


def verify(tree: DraftTree, ids: Sequence[int], newest: int, counts: Acceptance) -> int:
    """Counts what of a draft follows the text; the tokens committed."""
    # The text's token after each node is meaningful along the text, which is all that a walk follows.
    after = [ids[place] if (place := newest + depth + 1) < len(ids) else -1 for depth in tree.depths]
    path, _ = longest_path(tree, ids[newest + 1], after)
    counts.add(len(path))
    return len(path) + 1

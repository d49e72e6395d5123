"""Two drafters on one device read the same; each does its own part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_client.drafting.companion import PairedDrafter
from moa_shared.drafting import Growth
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree


class Named:
    """Says its number, and remembers what it was told."""

    reads_memory = True
    most_depth = None

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[object] = []

    def restart(self, tokens: Sequence[int]) -> None:
        self.told.append(("restart", tuple(tokens)))

    def commit(self, tokens: Sequence[int]) -> None:
        self.told.append(("commit", tuple(tokens)))

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self.told.append((start, len(rows), state))

    def draft(self, sampling: Sampling) -> DraftTree:
        return DraftTree.chain([self.number])

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return Growth((self.number,), (-1,))

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self.number, 0.5


def test_one_drafts_the_other_writes_and_both_know_the_same() -> None:
    online, alone = Named(1), Named(2)
    pair = PairedDrafter(online, alone)
    assert pair.reads_memory
    pair.restart([5, 6])
    pair.commit([7])
    pair.remember(0, np.zeros((2, 3), np.float32), state=True)
    pair.remember(1, np.zeros((1, 3), np.float32), state=False)
    assert online.told == alone.told == [("restart", (5, 6)), ("commit", (7,)), (0, 2, True), (1, 1, False)]
    assert pair.draft(Sampling()).tokens == (1,)
    assert pair.grow(DraftTree.chain([]), Sampling()).tokens == (1,)
    assert pair.write(DraftTree.chain([]), Sampling()) == (2, 0.5)

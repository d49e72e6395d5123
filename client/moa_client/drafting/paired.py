"""Two drafters on one device: the faster one drafts for the server, the one that writes better writes without it.

If both read memory, they read the same rows and run the same layers of the target; the states that the server sends are
those of the one that reuses more layers. State: each drafter's own; both have read the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_shared.drafting import Growth
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.draft_tree import DraftTree

from moa_client.drafting.drafters import ClientDrafter


class PairedDrafter:
    """A drafter for each situation.

    Args:
        online: drafts for a server that answers.
        standalone: writes while none does.
    """

    def __init__(self, online: ClientDrafter, standalone: ClientDrafter) -> None:
        self._online = online
        self._standalone = standalone

    @property
    def reads_memory(self) -> bool:
        return self._online.reads_memory or self._standalone.reads_memory

    @property
    def most_depth(self) -> int | None:
        return self._online.most_depth

    def restart(self, tokens: Sequence[int]) -> None:
        self._online.restart(tokens)
        self._standalone.restart(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self._online.commit(tokens)
        self._standalone.commit(tokens)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        self._online.remember(start, rows, state=state)
        self._standalone.remember(start, rows, state=state)

    def draft(self, sampling: Sampling) -> DraftTree:
        return self._online.draft(sampling)

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        return self._online.grow(draft, sampling)

    def write(self, draft: DraftTree, sampling: Sampling) -> tuple[int, float] | None:
        return self._standalone.write(draft, sampling)

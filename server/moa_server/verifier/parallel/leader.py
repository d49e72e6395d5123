"""The target on rank 0, whose forwards and rows of keys and values are those of all ranks.

State: as of a target in torch, of this rank's heads. Invariant: followers learn of each write before it is done here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from moa_server.verifier.paged.batch import Run
from moa_server.verifier.paged.pool import PagePool
from moa_server.verifier.parallel.group import Group
from moa_server.verifier.parallel.orders import Move, Read
from moa_server.verifier.target import Rows
from moa_server.verifier.torch_target import TorchTarget


class LeaderPool(PagePool):
    """The pages of this rank's heads; what is read comes with the other ranks' heads.

    Args:
        sizes: as of `PagePool`.
    """

    def __init__(self, group: Group, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._group = group

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        move = super().move
        self._group.carry_out(Move(source, to), lambda: move(source, to))

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        """As of `PagePool`, of all heads, on the host."""
        read = super().read
        return torch.cat(self._group.carry_out(Read(slots), lambda: self._group.gather(read(slots))), dim=3)


class LeaderTarget(TorchTarget):
    """The target whose forwards all ranks run; arguments besides `group` as of `TorchTarget`."""

    def __init__(self, group: Group, *args: Any, **options: Any) -> None:
        self._group = group
        super().__init__(*args, **options, shares=group.rank.count, make_pool=partial(LeaderPool, group))

    @property
    def details(self) -> str:
        return f"{super().details}, shared by {self._group.rank.count} processes"

    def compute(self, run: Run) -> tuple[Rows, Rows, dict[int, Rows]]:
        compute = super().compute
        return self._group.carry_out(run, lambda: compute(run))

"""Which rows of an update's batch are this process's. Pure.

Invariant: random draws are made for the rows of all processes by each of them, and cut down to its own. So an update
draws the same for the same rows, whatever the number of processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class RowShare:
    """The part of one process; each has as many rows as any other."""

    process: int = 0
    processes: int = 1

    def total(self, rows: int) -> int:
        """Rows of all processes, where each has `rows`."""
        return rows * self.processes

    def own(self, drawn: torch.Tensor) -> torch.Tensor:
        """This process's part of what was drawn for all rows, [all rows, ...]."""
        rows = drawn.shape[0] // self.processes
        return drawn[self.process * rows : (self.process + 1) * rows]


WHOLE = RowShare()  # one process, whose rows are all

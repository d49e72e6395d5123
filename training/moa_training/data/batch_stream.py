"""Batches of packed conversations, epoch after epoch. Pure, but it holds the rows.

Invariant: (epoch, batch) names the same batch in every run over the same rows, seed and number of processes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from moa_shared.errors import DataError

from moa_training.data.packing import PackedBatch, pack, plan_rows
from moa_training.data.shards import TokenRow


class BatchStream:
    """An endless stream of batches.

    Args:
        batch_rows: packed rows in a batch of one process.
        process, processes: which of them this is; each gets its own rows.
        repeat: every epoch has the batches of the first, in another order.
    """

    def __init__(
        self,
        rows: Sequence[TokenRow],
        *,
        batch_rows: int,
        row_tokens: int,
        seed: int,
        process: int = 0,
        processes: int = 1,
        repeat: bool = False,
    ) -> None:
        if not rows:
            raise DataError("The token shards hold no conversation.", hint="Prepare some text first.")
        self._rows = rows
        self._lengths = [len(row.ids) for row in rows]
        self._batch_rows, self._row_tokens, self._seed = batch_rows, row_tokens, seed
        self._process, self._processes, self._repeat = process, processes, repeat

    def from_position(self, epoch: int, batch: int) -> Iterator[tuple[int, int, PackedBatch]]:
        """(epoch, number of the batch after this one, batch), beginning with batch number `batch` of `epoch`."""
        while True:
            plan = self._plan(epoch)
            each = self._batch_rows * self._processes
            order = self._order(epoch, max(1, len(plan) // each))
            while batch < len(order):
                number = order[batch]
                first = number * each + self._process * self._batch_rows
                chosen = [plan[index % len(plan)] for index in range(first, first + self._batch_rows)]
                batch += 1
                packed = pack([[self._rows[i] for i in members] for members in chosen], self._row_tokens)
                yield epoch, batch, replace(packed, number=number)
            epoch, batch = epoch + 1, 0

    def _plan(self, epoch: int) -> list[list[int]]:
        return plan_rows(self._lengths, self._row_tokens, hash((self._seed, 0 if self._repeat else epoch)))

    def _order(self, epoch: int, count: int) -> list[int]:
        order = list(range(count))
        if self._repeat and epoch:
            random.Random(hash((self._seed, epoch))).shuffle(order)
        return order

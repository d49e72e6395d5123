"""Batches of packed conversations, epoch after epoch. Pure but for holding the rows.

Invariant: (epoch, batch) names the same batch in every run over the same rows, seed and number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from moa_shared.errors import DataError

from moa_training.packing import PackedBatch, pack, plan_rows
from moa_training.shards import TokenRow


class BatchStream:
    """Endless.

    Args:
        batch_rows: packed rows in a batch of one process.
        process, processes: which of them this is; each gets its own rows.
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
    ) -> None:
        if not rows:
            raise DataError("The token shards hold no conversation.", hint="Prepare some text first.")
        self._rows = rows
        self._lengths = [len(row.ids) for row in rows]
        self._batch_rows, self._row_tokens, self._seed = batch_rows, row_tokens, seed
        self._process, self._processes = process, processes

    def from_position(self, epoch: int, batch: int) -> Iterator[tuple[int, int, PackedBatch]]:
        """(epoch, number of the batch after this one, batch), beginning with batch number `batch` of `epoch`."""
        while True:
            plan = plan_rows(self._lengths, self._row_tokens, hash((self._seed, epoch)))
            each = self._batch_rows * self._processes
            count = max(1, len(plan) // each)
            while batch < count:
                first = batch * each + self._process * self._batch_rows
                chosen = [plan[index % len(plan)] for index in range(first, first + self._batch_rows)]
                batch += 1
                yield epoch, batch, pack([[self._rows[i] for i in members] for members in chosen], self._row_tokens)
            epoch, batch = epoch + 1, 0

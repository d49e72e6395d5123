"""Keys and values of one attention layer for one conversation, written in place and doubled when full."""

from __future__ import annotations

from collections.abc import Sequence

import torch

KeyValues = tuple[torch.Tensor, torch.Tensor]  # [kv heads, rows, head_dim] each; keys rotated


class RowBuffer:
    """Keys and values that grow at the end, [kv heads, rows, head_dim] each."""

    def __init__(self, kv_heads: int, head_dim: int, dtype: torch.dtype, capacity: int = 256) -> None:
        self._buffer = torch.empty(2, kv_heads, capacity, head_dim, dtype=dtype)
        self.length = 0

    def append(self, keys_values: KeyValues) -> None:
        start = self.length
        stop = start + keys_values[0].shape[-2]
        self._reserve(stop)
        self._buffer[0, :, start:stop] = keys_values[0]
        self._buffer[1, :, start:stop] = keys_values[1]
        self.length = stop

    def crop(self, length: int) -> None:
        self.length = min(self.length, length)

    def take(self, start: int) -> torch.Tensor:
        """Removes the rows from `start` on; a copy of them, which `put` takes."""
        rows = self._buffer[:, :, start : self.length].clone()
        self.length = start
        return rows

    def put(self, rows: torch.Tensor) -> None:
        """Appends what `take` gave."""
        self.append((rows[0], rows[1]))

    def keep(self, rows: torch.Tensor) -> None:
        """Keeps only the rows where the mask [length] is True."""
        kept = self._buffer[:, :, : self.length][:, :, rows]
        self.length = kept.shape[2]
        self._buffer[:, :, : self.length] = kept

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        """Of the rows from `start` on keeps only these, in this order; they are numbered from 0."""
        moved = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if moved < len(rows):
            source = torch.tensor([start + row for row in rows[moved:]])
            self._buffer[:, :, start + moved : start + len(rows)] = self._buffer[:, :, source]
        self.length = start + len(rows)

    @property
    def keys_values(self) -> KeyValues:
        return self._buffer[0, :, : self.length], self._buffer[1, :, : self.length]

    def before(self, length: int) -> KeyValues:
        """The first `length` rows."""
        return self._buffer[0, :, :length], self._buffer[1, :, :length]

    def _reserve(self, rows: int) -> None:
        if rows <= self._buffer.shape[2]:
            return
        grown = self._buffer.new_empty(2, self._buffer.shape[1], 2 * rows, self._buffer.shape[3])
        grown[:, :, : self.length] = self._buffer[:, :, : self.length]
        self._buffer = grown

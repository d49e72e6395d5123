"""Keys and values in numpy arrays, for stacks that compute without kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from moa_kernels.bindings import F16, Q8
from moa_kernels.blocks import Rows
from moa_kernels.transformer.cache import Cache, Heads


class ReferenceCache(Cache):
    """Keys and values in an array [rows, heads, 2, their numbers] for each layer, of any size of a head.

    Of 8 bits it holds what they stand for, in float32.
    """

    _head_divisor = 1

    def __init__(self, heads: Sequence[Heads], *, kv: str) -> None:
        super().__init__(heads, kv=kv)
        self.rows = [np.zeros((0, count, 2, dim), np.float16 if kv == F16 else np.float32) for count, dim in heads]

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.rows)

    def most_nbytes(self, rows: int) -> int:
        return 2 * rows * sum(heads.width for heads in self.heads) * self.rows[0].itemsize

    def release(self) -> None:
        self.length = 0
        self.rows = [rows[:0].copy() for rows in self.rows]

    def reserve(self, rows: int) -> None:
        held = len(self.rows[0])
        if rows > held:
            more = max(rows, 2 * held) - held
            self.rows = [np.concatenate((own, np.zeros((more, *own.shape[1:]), own.dtype))) for own in self.rows]

    def write(self, layer: int, keys: Rows, values: Rows) -> None:
        self._check_rows(layer, keys, values)
        self.put(layer, self.length, keys, values)

    def put(self, layer: int, slot: int, keys: Rows, values: Rows) -> None:
        """Writes rows from `slot` on."""
        self.reserve(slot + len(keys))
        rows = np.stack((keys, values), axis=2).astype(np.float32, copy=False)
        self.rows[layer][slot : slot + len(keys)] = _in_8_bits(rows) if self.kv == Q8 else rows

    def read(self, start: int, stop: int) -> Rows:
        self._check_read(start, stop)
        out = np.zeros((stop - start, len(self.heads), self.width), np.float32)
        for layer, (rows, heads) in enumerate(zip(self.rows, self.heads, strict=True)):
            out[:, layer, : heads.width] = rows[start:stop].reshape(-1, heads.width)
        return out

    def keep_behind(self, start: int, rows: Sequence[int]) -> None:
        self._check_kept(start, rows)
        for own in self.rows:
            own[start : start + len(rows)] = own[[start + row for row in rows]]
        self.length = start + len(rows)

    def move_last(self, rows: int, by: int) -> None:
        self._check_moved(rows, by)
        stop = self.length
        self.reserve(stop + by)
        for own in self.rows:
            own[stop - rows + by : stop + by] = own[stop - rows : stop].copy()
        self.length = stop + by


def _in_8_bits(rows: Rows) -> Rows:
    """Each row of [..., head_dim] rounded to 8 bits with a scale of its own."""
    largest = np.maximum(np.abs(rows).max(axis=-1, keepdims=True), np.float32(1e-12))
    codes = np.rint(rows * (np.float32(127) / largest))
    return np.asarray(codes * (largest / np.float32(127)), np.float32)

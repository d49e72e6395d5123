"""Keys and values of one conversation as torch tensors, written in place.

One buffer [layers, kv_heads, capacity, 2, head_dim] holds rotated keys (0) and values (1) side by side: attention reads
strided views of it. Rows below `length` are copied only when the buffer grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from moa_server.target.arrays import as_array
from moa_server.target.cache import KVCache

# Room for a first prompt; the default target needs 23 kB a token in bfloat16.
INITIAL_CAPACITY = 256
# The buffer doubles, but grows by no more than this at once: it would hold up to half of itself empty. At the default
# target's 8,192 tokens a growth copies 190 MB, about 0.04 ms for each token that it makes room for.
LARGEST_GROWTH = 1024


class TorchCache(KVCache):
    """A cache that transformers' attention modules write into through `update`, as into one of their own."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        first_rows: int = INITIAL_CAPACITY,
    ) -> None:
        super().__init__()
        self._first_rows = first_rows
        self._buffer = torch.empty(layers, kv_heads, 0, 2, head_dim, dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def most_nbytes(self, rows: int) -> int:
        layers, kv_heads, _, two, head_dim = self._buffer.shape
        row = layers * kv_heads * two * head_dim * self._buffer.itemsize
        return row * max(self._first_rows, min(2 * rows, rows + LARGEST_GROWTH))

    def _free(self) -> None:
        self._buffer = self._buffer[:, :, :0].clone()

    def reserve(self, rows: int) -> None:
        capacity = self._buffer.shape[2]
        if rows <= capacity:
            return
        layers, kv_heads, _, two, head_dim = self._buffer.shape
        capacity = max(rows, self._first_rows, min(2 * capacity, capacity + LARGEST_GROWTH))
        grown = self._buffer.new_empty(layers, kv_heads, capacity, two, head_dim)
        grown[:, :, : self._length] = self._buffer[:, :, : self._length]
        self._buffer = grown

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new rows and give all of its rows.

        Args:
            keys: rotated, [1, kv_heads, count, head_dim]; `values` alike.

        Returns:
            keys and values of all rows, [1, kv_heads, length + count, head_dim]: views of the buffer.
        """
        stop = self._length + self._pending
        rows = self._buffer[layer]  # [kv_heads, capacity, 2, head_dim]
        rows[:, self._length : stop, 0].copy_(keys[0])
        rows[:, self._length : stop, 1].copy_(values[0])
        held = rows[None, :, :stop]
        return held[..., 0, :], held[..., 1, :]

    def _move(self, source: Sequence[int], start: int) -> None:
        rows = torch.tensor(source, device=self._buffer.device)
        self._buffer[:, :, start : start + len(source)] = self._buffer[:, :, rows]

    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        rows = self._buffer[:, :, start:stop].permute(2, 0, 1, 3, 4)  # [rows, layers, kv_heads, 2, head_dim]
        return as_array(rows.clone(memory_format=torch.contiguous_format))

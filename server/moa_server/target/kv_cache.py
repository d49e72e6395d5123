"""The target's keys and values of one conversation, written in place.

One buffer [layers, kv_heads, capacity, 2, head_dim] holds rotated keys (0) and values (1) side by side: attention reads
strided views of it, and the memory encoder's input is a gather of the rows asked for. State: the committed rows
`0..length`, of which the last forward's rows (the *tail*) may still be cut down to one path.
Invariant: rows below `length` are never moved or copied, except when the buffer grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from moa_shared.errors import InternalError, TreeError

from moa_server.target.arrays import as_array

# Room for a first prompt; the default target needs 23 kB a token in bfloat16.
INITIAL_CAPACITY = 256
# The buffer doubles, but grows by no more than this at once: it would hold up to half of itself empty. At the default
# target's 8,192 tokens a growth copies 190 MB, about 0.04 ms for each token that it makes room for.
LARGEST_GROWTH = 1024


class KVCache:
    """Keys and values of one conversation; made by `Target.new_cache`.

    Transformers' attention modules write into it through `update`, as into a cache of their own.
    """

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | None = None,
        capacity: int = INITIAL_CAPACITY,
    ) -> None:
        self._buffer = torch.empty(layers, kv_heads, capacity, 2, head_dim, dtype=dtype, device=device)
        self._length = 0
        self._pending = 0  # rows that a forward is writing behind `length`
        self._tail_start = 0
        self._tail_depths: tuple[int, ...] = ()  # of the last forward's rows, while they may be cut to a path
        self._tail_is_chain = True

    @property
    def length(self) -> int:
        """Rows held, the tail included."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer (memory held, not only what is in use)."""
        return self._buffer.nbytes

    def reserve(self, rows: int) -> None:
        """Make room for `rows` rows in all, at once: a prompt of known length need not grow by steps."""
        capacity = self._buffer.shape[2]
        if rows <= capacity:
            return
        layers, kv_heads, _, two, head_dim = self._buffer.shape
        capacity = max(rows, min(2 * capacity, capacity + LARGEST_GROWTH))
        grown = self._buffer.new_empty(layers, kv_heads, capacity, two, head_dim)
        grown[:, :, : self._length] = self._buffer[:, :, : self._length]
        self._buffer = grown

    def begin(self, count: int) -> None:
        """Make room for `count` rows behind the last one; a forward calls this before it writes.

        Raises:
            InternalError: the last forward's tree was not cut down to a path.
        """
        if not self._tail_is_chain:
            raise InternalError("The rows of a draft tree were not cut to a path before the next forward.")
        self.reserve(self._length + count)
        self._pending = count

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

    def end(self, depths: Sequence[int]) -> None:
        """Count the rows written since `begin` as held; `depths` are their depths in the tree, roots 0."""
        if len(depths) != self._pending:
            raise InternalError(f"{self._pending} rows were written, {len(depths)} are to be counted.")
        self._tail_start = self._length
        self._tail_depths = tuple(depths)
        self._tail_is_chain = all(depth == row for row, depth in enumerate(depths))
        self._length += self._pending
        self._pending = 0

    def keep(self, path: Sequence[int]) -> None:
        """Of the last forward's rows keep only `path`, moved together; nothing else is touched.

        Args:
            path: rows of the last forward from a root downwards: depths 0, 1, 2... An empty path keeps none.

        Raises:
            TreeError: not such a path.
        """
        for depth, row in enumerate(path):
            if not 0 <= row < len(self._tail_depths) or self._tail_depths[row] != depth:
                raise TreeError(f"The rows {list(path)} are no path from the root of the last forward's tree.")
        moved = next((place for place, row in enumerate(path) if place != row), len(path))
        if moved < len(path):
            source = torch.tensor([self._tail_start + row for row in path[moved:]], device=self._buffer.device)
            start = self._tail_start + moved
            self._buffer[:, :, start : start + len(source)] = self._buffer[:, :, source]
        self._length = self._tail_start + len(path)
        self._forget_tail()

    def crop(self, length: int) -> None:
        """Drop the rows from `length` on.

        Raises:
            InternalError: there are fewer rows than that.
        """
        if not 0 <= length <= self._length:
            raise InternalError(f"A cache of {self._length} rows cannot be cropped to {length}.")
        if not self._tail_is_chain and length > self._tail_start + 1:
            raise InternalError("A draft tree must be cut to a path, or dropped whole, before its rows are cropped.")
        self._length = length
        self._forget_tail()

    def lsa_input(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """The memory encoder's input for the rows `start..stop`.

        Returns:
            [stop - start, layers, 2 * kv_heads * head_dim] float32; the last axis is, for each KV head in turn, its
            rotated key and then its value (the layout of arXiv 2410.03804's published code). A copy of these rows only.

        Raises:
            InternalError: rows that are not held.
        """
        if not 0 <= start <= stop <= self._length:
            raise InternalError(f"Rows {start}..{stop} were asked of a cache of {self._length} rows.")
        rows = self._buffer[:, :, start:stop].permute(2, 0, 1, 3, 4)  # [rows, layers, kv_heads, 2, head_dim]
        return as_array(rows.clone(memory_format=torch.contiguous_format).flatten(2))

    def _forget_tail(self) -> None:
        self._tail_start, self._tail_depths, self._tail_is_chain = self._length, (), True

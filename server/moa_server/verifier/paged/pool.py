"""The pages that hold the keys and values of all conversations in torch, and which of them are free.

State: one tensor, made once and never moved, so that recorded graphs may refer to it; the free pages. On a CPU the
system gives its memory as it is first written. Invariant: a page belongs to one conversation or is free; page 0 is
nobody's, rows that only fill a batch are written there.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import torch
from moa_shared.errors import ConfigError
from rich.filesize import decimal

from moa_server.verifier.paged.batch import PAGE_ROWS, SPARE_PAGE


class PagePool:
    """Pages of `PAGE_ROWS` rows each.

    Args:
        nbytes: of all pages that may be given out; at least one is made.

    Raises:
        ConfigError: the device has not so much memory.

    Attributes:
        tensor: [layers, 2, pages, PAGE_ROWS, kv_heads, head_dim], rotated keys (0) and values (1).
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, nbytes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page_nbytes = 2 * layers * PAGE_ROWS * kv_heads * head_dim * dtype.itemsize
        self.count = 1 + max(1, nbytes // self.page_nbytes)
        try:
            self.tensor = torch.empty(layers, 2, self.count, PAGE_ROWS, kv_heads, head_dim, dtype=dtype, device=device)
        except RuntimeError as error:
            raise ConfigError(
                f"There is no room for {decimal(nbytes)} of keys and values on {device.type}.",
                hint="Lower --kv-bytes.",
            ) from error
        self._rows = self.tensor.flatten(2, 3)  # [layers, 2, slots, kv_heads, head_dim]
        self._given: list[int] = []  # back, the last one first out: memory that was written is used again
        self._fresh = SPARE_PAGE + 1
        self._one_taker = Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of all pages that may be given out."""
        return (self.count - 1) * self.page_nbytes

    def take(self, count: int) -> list[int]:
        """Free pages, one after the other as far as possible.

        Raises:
            MemoryError: there are fewer; none was taken.
        """
        with self._one_taker:
            if count > len(self._given) + self.count - self._fresh:
                raise MemoryError(f"All {self.count - 1} pages of keys and values are in use.")
            again = [self._given.pop() for _ in range(min(count, len(self._given)))]
            fresh = range(self._fresh, self._fresh + count - len(again))
            self._fresh = fresh.stop
            return [*again, *fresh]

    def give_back(self, pages: list[int]) -> None:
        """Empties the list of a conversation's pages; they are free. Any thread may collect a dropped conversation."""
        freed = pages[::-1]
        pages.clear()
        self._given.extend(freed)

    def keys(self, layer: int) -> torch.Tensor:
        """[pages, PAGE_ROWS, kv_heads, head_dim]."""
        return self.tensor[layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """[pages, PAGE_ROWS, kv_heads, head_dim]."""
        return self.tensor[layer, 1]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes rows of one layer to their slots.

        Args:
            slots: [rows]; a slot is a row of a page: page * PAGE_ROWS + row.
            keys: [rows, kv_heads, head_dim]; `values` alike.
        """
        self._rows[layer, 0].index_copy_(0, slots, keys)
        self._rows[layer, 1].index_copy_(0, slots, values)

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copies rows of all layers from slots to others, as if at once."""
        device = self.tensor.device
        rows = self._rows[:, :, torch.tensor(source, device=device)]
        self._rows[:, :, torch.tensor(to, device=device)] = rows

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        """A copy of rows of all layers, [layers, 2, rows, kv_heads, head_dim]."""
        return self._rows[:, :, torch.tensor(slots, dtype=torch.long, device=self.tensor.device)]

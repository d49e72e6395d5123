"""Keys and values in pages of one pool, the rows of a forward over them, and one conversation's place there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from moa_shared.errors import ConfigError
from moa_shared.tree import ancestor_matrix
from rich.filesize import decimal

from moa_server.verifier.target import KVCache, Rows

PAGE_ROWS = 64
SPARE_PAGE = 0  # no conversation's: rows that fill a batch are written there

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One conversation's rows."""

    tokens: Sequence[int]
    depths: Sequence[int]  # below the last token of the prefix, whose children have depth 0
    prefix: int
    pages: Sequence[int]
    parents: Sequence[int] | None = None  # in the tree; None: a chain

    @property
    def length(self) -> int:
        return self.prefix + len(self.tokens)

    def seen(self) -> npt.NDArray[np.bool_]:
        """[rows, rows]: which of the new rows each of them sees."""
        if self.parents is None:
            return np.tri(len(self.tokens), dtype=np.bool_)
        return ancestor_matrix(self.parents)

    def used_pages(self) -> Sequence[int]:
        return self.pages[: -(-self.length // PAGE_ROWS)]


@dataclass(frozen=True, slots=True)
class Run:
    """One forward, as each process that has a share of the target computes it; `chosen`, `layers`: `Target._run`'s."""

    parts: Sequence[BatchPart]
    rows: int  # that it is filled up to; 0: it is not
    chosen: Sequence[int]
    layers: Sequence[int]

    @classmethod
    def of(cls, parts: Iterable[Sequence[Any]], *others: Any) -> Run:
        """What `fields` gave, as it came out of JSON."""
        return cls([BatchPart(*part) for part in parts], *others)

    def fields(self) -> tuple[Any, ...]:
        """Plain lists and numbers."""
        parts = [
            (list(each.tokens), list(each.depths), each.prefix, list(each.used_pages()), each.parents)
            for each in self.parts
        ]
        return parts, self.rows, self.chosen, self.layers


FILLER = BatchPart([0], [0], 0, [SPARE_PAGE])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several conversations; the last ones may be of `FILLER`."""

    parts: Sequence[BatchPart]
    tokens: Numbers  # [rows], as the others
    positions: Numbers  # in their text
    slots: Numbers  # where their keys and values are written

    @property
    def rows(self) -> int:
        return len(self.tokens)


def lay_out(parts: Sequence[BatchPart], rows: int = 0) -> Batch:
    """The arrays of a forward over `parts`, filled up to `rows` rows if there are fewer."""
    count = sum(len(part.tokens) for part in parts)
    parts = [*parts, *[FILLER] * max(0, rows - count)]
    tokens = np.concatenate([np.asarray(part.tokens, np.int64) for part in parts])
    positions = np.concatenate([part.prefix + np.asarray(part.depths, np.int64) for part in parts])
    slots = [slots_of(part.pages, range(part.prefix, part.length)) for part in parts]
    return Batch(parts, tokens, positions, np.concatenate(slots))


def slots_of(pages: Sequence[int], rows: Sequence[int]) -> Numbers:
    """Where rows of a conversation with these pages lie in the pool."""
    at = np.asarray(rows, np.int64)
    return np.asarray(pages, np.int64)[at // PAGE_ROWS] * PAGE_ROWS + at % PAGE_ROWS


def bucket(rows: int) -> int:
    """The number of rows that a forward of so many is filled up to: the next power of two."""
    return 1 << (rows - 1).bit_length()


class PagePool:
    """Pages of `PAGE_ROWS` rows each. `nbytes`: of all that may be given out; at least one is made.

    `tensor`: [layers, 2, pages, PAGE_ROWS, kv_heads, head_dim], rotated keys (0) and values (1).
    """

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, nbytes: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.page_nbytes = 2 * layers * PAGE_ROWS * kv_heads * head_dim * dtype.itemsize
        self.count = 1 + max(1, nbytes // self.page_nbytes)
        try:
            self.tensor = torch.empty(layers, 2, self.count, PAGE_ROWS, kv_heads, head_dim, dtype=dtype, device=device)
        except RuntimeError as error:
            message = f"There is no room for {decimal(nbytes)} of keys and values on {device.type}."
            raise ConfigError(message, hint="Lower --kv-bytes.") from error
        self._rows = self.tensor.flatten(2, 3)  # [layers, 2, slots, kv_heads, head_dim]
        self._given: list[int] = []  # back, the last one first out: memory that was written is used again
        self._fresh = SPARE_PAGE + 1
        self._one_taker = Lock()

    @property
    def nbytes(self) -> int:
        return (self.count - 1) * self.page_nbytes

    def take(self, count: int) -> list[int]:
        """Free pages, one after the other as far as possible."""
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

    def keys_values(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Each [pages, PAGE_ROWS, kv_heads, head_dim]."""
        return self.tensor[layer, 0], self.tensor[layer, 1]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes rows of one layer, [rows, kv_heads, head_dim], to their slots: page * PAGE_ROWS + row of it."""
        self._rows[layer, 0].index_copy_(0, slots, keys)
        self._rows[layer, 1].index_copy_(0, slots, values)

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copies rows of all layers from slots to others, as if at once."""
        device = self.tensor.device
        rows = self._rows[:, :, torch.tensor(source, device=device)]
        self._rows[:, :, torch.tensor(to, device=device)] = rows

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        return self._rows[:, :, torch.tensor(slots, dtype=torch.long, device=self.tensor.device)]


def as_array(tensor: torch.Tensor) -> Rows:
    wide = tensor.detach().float()
    if wide.is_cuda:  # into pinned memory, which torch uses again: several times as fast, and logits are large
        wide = torch.empty(wide.shape, dtype=wide.dtype, pin_memory=True).copy_(wide)
    array: Rows = wide.numpy()
    return array


def over_arrays(
    function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, device: torch.device
) -> Callable[[Rows], Rows]:
    """Wraps a function over tensors of one dtype and device as one over float32 arrays, without gradients."""

    def run(rows: Rows) -> Rows:
        with torch.inference_mode():
            return as_array(function(torch.from_numpy(rows).to(device, dtype)))

    return run


class PagedCache(KVCache):
    def __init__(self, pool: PagePool) -> None:
        super().__init__()
        self.pages: list[int] = []
        self.pool = pool
        weakref.finalize(self, pool.give_back, self.pages).atexit = False

    @property
    def nbytes(self) -> int:
        return len(self.pages) * self.pool.page_nbytes

    def most_nbytes(self, rows: int, drafted: int = 0) -> int:
        return -(-rows // PAGE_ROWS) * self.pool.page_nbytes

    def reserve(self, rows: int) -> None:
        needed = -(-rows // PAGE_ROWS) - len(self.pages)
        if needed > 0:
            self.pages += self.pool.take(needed)

    def slots(self, start: int, stop: int) -> list[int]:
        """Where the rows `start..stop`, all of them held, lie in the pool."""
        self._check_held(start, stop)
        slots: list[int] = slots_of(self.pages, range(start, stop)).tolist()
        return slots

    def _free(self) -> None:
        self.pool.give_back(self.pages)

    def _keep(self, start: int, rows: Sequence[int]) -> None:
        if moved := [(start + row, start + place) for place, row in enumerate(rows) if place != row]:
            self.pool.move(*(slots_of(self.pages, each).tolist() for each in zip(*moved, strict=True)))

    def _read(self, start: int, stop: int) -> Rows:
        return in_order(self.pool.read(self.slots(start, stop)))


def in_order(rows: torch.Tensor) -> Rows:
    """Rows as the pool gives them as a cache does: [rows, layers, kv_heads, 2, head_dim]."""
    return as_array(rows.permute(2, 0, 3, 1, 4).contiguous())

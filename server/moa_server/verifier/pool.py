"""Keys and values in pages of one pool, the rows of a forward over them, and one conversation's place there."""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from moa_shared.errors import ConfigError
from moa_shared.tree import ancestor_matrix
from rich.filesize import decimal

from moa_server.verifier.target import KVCache

PAGE_ROWS = 64
SPARE_PAGE = 0  # no conversation's: rows that fill a batch are written there

Numbers = npt.NDArray[np.int64]
Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class BatchPart:
    """One conversation's rows.

    `depths`: of the rows below the last token of the prefix, whose children have depth 0. `parents`: of the rows in the
    tree; None for a chain.
    """

    tokens: Sequence[int]
    depths: Sequence[int]
    prefix: int
    pages: Sequence[int]
    parents: Sequence[int] | None = None

    @property
    def length(self) -> int:
        return self.prefix + len(self.tokens)

    def seen(self) -> Seen:
        """[rows, rows]: which of the new rows each of them sees."""
        if self.parents is None:
            return np.tri(len(self.tokens), dtype=np.bool_)
        return ancestor_matrix(self.parents)

    def used_pages(self) -> Sequence[int]:
        return self.pages[: -(-self.length // PAGE_ROWS)]


@dataclass(frozen=True, slots=True)
class Run:
    """One forward, as each process that has a share of the target computes it.

    `rows`: that the forward is filled up to; 0: it is not. `layers`: whose entering state is wanted; as many as there
    are layers: what leaves the last.
    """

    parts: Sequence[BatchPart]
    rows: int
    chosen: Sequence[int]
    layers: Sequence[int]


FILLER = BatchPart([0], [0], 0, [SPARE_PAGE])


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of several conversations.

    `parts`: in the order of the rows; the last ones may be `FILLER`. `tokens`: [rows]; `positions`: in their text;
    `slots`: where their keys and values are written.
    """

    parts: Sequence[BatchPart]
    tokens: Numbers
    positions: Numbers
    slots: Numbers

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def firsts(self) -> list[int]:
        return [0, *np.cumsum([len(part.tokens) for part in self.parts]).tolist()]

    @property
    def is_causal(self) -> bool:
        return all(part.parents is None for part in self.parts)


def lay_out(parts: Sequence[BatchPart], rows: int = 0) -> Batch:
    """The arrays of a forward over `parts`, filled up to `rows` rows if there are fewer."""
    count = sum(len(part.tokens) for part in parts)
    parts = [*parts, *[FILLER] * max(0, rows - count)]
    tokens = np.concatenate([np.asarray(part.tokens, np.int64) for part in parts])
    positions = np.concatenate([part.prefix + np.asarray(part.depths, np.int64) for part in parts])
    return Batch(parts, tokens, positions, np.concatenate([_slots(part) for part in parts]))


def _slots(part: BatchPart) -> Numbers:
    rows = np.arange(part.prefix, part.length)
    return np.asarray(part.pages, np.int64)[rows // PAGE_ROWS] * PAGE_ROWS + rows % PAGE_ROWS


def bucket(rows: int) -> int:
    """The number of rows that a forward of so many is filled up to: the next power of two."""
    return 1 << (rows - 1).bit_length()


class PagePool:
    """Pages of `PAGE_ROWS` rows each.

    Args:
        nbytes: of all pages that may be given out; at least one is made.

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

    def keys(self, layer: int) -> torch.Tensor:
        """[pages, PAGE_ROWS, kv_heads, head_dim]."""
        return self.tensor[layer, 0]

    def values(self, layer: int) -> torch.Tensor:
        """[pages, PAGE_ROWS, kv_heads, head_dim]."""
        return self.tensor[layer, 1]

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Writes rows of one layer to their slots.

        `slots`: [rows]; a slot is a row of a page: page * PAGE_ROWS + row. `keys`: [rows, kv_heads, head_dim]; `values`
        alike.
        """
        self._rows[layer, 0].index_copy_(0, slots, keys)
        self._rows[layer, 1].index_copy_(0, slots, values)

    def move(self, source: Sequence[int], to: Sequence[int]) -> None:
        """Copies rows of all layers from slots to others, as if at once."""
        device = self.tensor.device
        rows = self._rows[:, :, torch.tensor(source, device=device)]
        self._rows[:, :, torch.tensor(to, device=device)] = rows

    def read(self, slots: Sequence[int]) -> torch.Tensor:
        return self._rows[:, :, torch.tensor(slots, dtype=torch.long, device=self.tensor.device)]


Rows = npt.NDArray[np.float32]


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
    """A cache whose rows are written by the forward, at `slots`."""

    def __init__(self, pool: PagePool) -> None:
        super().__init__()
        self.pages: list[int] = []
        self._pool = pool
        weakref.finalize(self, pool.give_back, self.pages).atexit = False

    @property
    def nbytes(self) -> int:
        return len(self.pages) * self._pool.page_nbytes

    def most_nbytes(self, rows: int) -> int:
        return -(-rows // PAGE_ROWS) * self._pool.page_nbytes

    def reserve(self, rows: int) -> None:
        needed = -(-rows // PAGE_ROWS) - len(self.pages)
        if needed > 0:
            self.pages += self._pool.take(needed)

    def slots(self, rows: Sequence[int]) -> list[int]:
        """Where rows of this conversation lie in the pool."""
        return [self.pages[row // PAGE_ROWS] * PAGE_ROWS + row % PAGE_ROWS for row in rows]

    def held_slots(self, start: int, stop: int) -> list[int]:
        """As `slots`, of the rows `start..stop`."""
        self._check_held(start, stop)
        return self.slots(range(start, stop))

    def _free(self) -> None:
        self._pool.give_back(self.pages)

    def _move(self, source: Sequence[int], start: int) -> None:
        self._pool.move(self.slots(source), self.slots(range(start, start + len(source))))

    def _read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        return in_order(self._pool.read(self.slots(range(start, stop))))


def in_order(rows: torch.Tensor) -> npt.NDArray[np.float32]:
    """Rows as the pool gives them as a cache does: [rows, layers, kv_heads, 2, head_dim]."""
    return as_array(rows.permute(2, 0, 3, 1, 4).contiguous())

"""Recurrent states of one session: of each gated delta net a matrix a head, and the last inputs of its convolution.

States advance in place, by committed rows only. Drafted rows leave what they would change; those that are kept wait,
and the next forward replays them before its own rows. Invariant: a state has the same bits however its rows were cut,
drafted and replayed. All layers' states lie in one piece of memory, which a snapshot copies.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from moa_kernels.bindings import KernelError, aligned_zeros
from moa_kernels.blocks import Rows
from moa_kernels.transformer.pages import Page

Numbers = npt.NDArray[np.int32]


class StateShape(NamedTuple):
    """The state of a gated delta net: `heads` matrices [key_dim, value_dim] float32.

    `taps`: of the convolution, which keeps one input less. `tiled`: value head h has the key head h % key_heads
    (llama.cpp's order), else h // (heads // key_heads).
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    taps: int
    tiled: bool = False

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values of all heads side by side."""
        return 2 * self.key_heads * self.key_dim + self.heads * self.value_dim

    @property
    def nbytes(self) -> int:
        return 4 * (self.heads * self.key_dim * self.value_dim + (self.taps - 1) * self.channels)

    @property
    def draft_nbytes(self) -> int:
        """What a drafted row leaves."""
        return 4 * (self.heads + self.key_heads * self.key_dim + self.heads * self.value_dim + self.channels)

    def of_value_heads(self, keys: Rows) -> Rows:
        """[key_heads, key_dim] to [heads, key_dim]: what each value head has."""
        each = self.heads // self.key_heads
        return np.tile(keys, (each, 1)) if self.tiled else np.repeat(keys, each, axis=0)


class Drafted(NamedTuple):
    """What a drafted row has left in one layer: views of it."""

    decays: Rows  # [heads]
    keys: Rows  # [key_heads, key_dim]
    deltas: Rows  # [heads, value_dim]
    inputs: Rows  # [channels], of the convolution


class Snapshot(Page):
    """A copy of all states once they had taken in `rows` rows; shared like a page, and never written again."""

    __slots__ = ("rows",)

    def __init__(self, rows: int, nbytes: int) -> None:
        super().__init__(nbytes)
        self.rows = rows


class States:
    """`committed`: how many rows they have taken in. `snapshots`: those that are held, by their rows."""

    def __init__(self, shapes: Sequence[StateShape]) -> None:
        self.shapes = tuple(shapes)
        self.state_nbytes = sum(shape.nbytes for shape in shapes)
        self.draft_nbytes = sum(shape.draft_nbytes for shape in shapes)
        self.offsets, self.draft_offsets = (  # of each layer, in numbers
            tuple(itertools.accumulate((nbytes // 4 for nbytes in sizes), initial=0))
            for sizes in ([shape.nbytes for shape in shapes], [shape.draft_nbytes for shape in shapes])
        )
        self.snapshots: list[Snapshot] = []
        self._clear()

    def _clear(self) -> None:
        self.committed = 0
        self.memory: Rows = np.zeros(0, np.float32)  # none before the first row
        self.drafted: Rows = np.zeros((0, self.draft_nbytes // 4), np.float32)
        self._behind: list[int] = []  # where in `drafted` the row in each slot behind `committed` is
        # Of the forward that is prepared: where the rows behind `committed` are, of which the last `known` stay drafts,
        # where its own drafted rows come, and which row each follows.
        self.known = 0
        self.earlier = self.places = self.parents = np.zeros(0, np.int32)
        self._is_torn = False  # a forward began and did not end: layers are at different rows

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.drafted.nbytes + sum(each.nbytes for each in self.snapshots)

    def matrices(self, layer: int) -> Rows:
        """[heads, key_dim, value_dim] of a layer, a view; the kernels order the numbers of a matrix otherwise."""
        shape, start = self.shapes[layer], self.offsets[layer]
        stop = self.offsets[layer + 1] - (shape.taps - 1) * shape.channels
        return self.memory[start:stop].reshape(shape.heads, shape.key_dim, shape.value_dim)

    def inputs(self, layer: int) -> Rows:
        """The last inputs of a layer's convolution, [taps - 1, channels], the oldest first; a view."""
        shape, stop = self.shapes[layer], self.offsets[layer + 1]
        return self.memory[stop - (shape.taps - 1) * shape.channels : stop].reshape(shape.taps - 1, shape.channels)

    def left(self, layer: int, row: int) -> Drafted:
        heads, key_heads, key_dim, value_dim = self.shapes[layer][:4]
        row_of_layer = self.drafted[row, self.draft_offsets[layer] : self.draft_offsets[layer + 1]]
        stops = list(itertools.accumulate((heads, key_heads * key_dim, heads * value_dim)))
        decays, keys, deltas, inputs = np.split(row_of_layer, stops)
        return Drafted(decays, keys.reshape(key_heads, key_dim), deltas.reshape(heads, value_dim), inputs)

    def waiting(self, length: int) -> list[int]:
        """The drafted rows behind the committed ones, where the cache holds `length` rows."""
        count = length - self.committed
        if self._is_torn or not 0 <= count <= len(self._behind):
            where = "are torn by a forward that failed" if self._is_torn else f"have taken in {self.committed} rows"
            raise KernelError(
                f"States {where}, and {len(self._behind)} drafted rows wait: {length} rows do not follow."
            )
        return self._behind[:count]

    def prepare(self, length: int, known: int, drafted: int, parents: Numbers) -> None:
        """Makes room for a forward behind `length` rows, with so many drafted ones; MemoryError changes nothing.

        `known`: how many of the rows that wait stay drafts; the others are replayed. `parents`: as of a segment.
        """
        earlier = self.waiting(length)
        kept = set(earlier[len(earlier) - known :])
        places = list(itertools.islice((place for place in itertools.count() if place not in kept), drafted))
        self._make_room(max(places, default=-1) + 1)
        self.known, self.parents = known, parents
        self.earlier, self.places = np.array(earlier, np.int32), np.array(places, np.int32)

    def _make_room(self, drafted: int) -> None:
        if not self.memory.size:
            self.memory = aligned_zeros(self.state_nbytes).view(np.float32)
        if (more := drafted - len(self.drafted)) > 0:
            self.drafted = np.concatenate((self.drafted, np.zeros((more, self.drafted.shape[1]), np.float32)))

    def begin(self) -> None:
        """The forward advances one layer after the other from here on."""
        self._is_torn = True

    def end(self, rows: int) -> None:
        """The forward has advanced all layers by what waited and by so many rows, its drafts not among them."""
        replayed = len(self.earlier) - self.known
        self.committed += replayed + rows
        self._behind, self._is_torn = [*self.earlier[replayed:].tolist(), *self.places.tolist()], False

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """As `Cache.keep_behind`; rows that the states have taken in cannot be dropped."""
        taken = max(self.committed - start, 0)
        if list(rows[:taken]) != list(range(taken)):
            raise KernelError(f"Of {self.committed} rows in the states, {list(rows)} from {start} on cannot be kept.")
        first = max(start - self.committed, 0)
        self._behind[first:] = [self._behind[start + row - self.committed] for row in rows[taken:]]

    def crop(self, length: int) -> int:
        """Goes to the newest place at or before `length` rows where they exist, and returns it."""
        if self.committed <= length and not self._is_torn:
            del self._behind[length - self.committed :]
            return length
        return self.restore(next((each for each in reversed(self.snapshots) if each.rows <= length), None))

    def restore(self, snapshot: Snapshot | None) -> int:
        """Goes to a snapshot, which is held from now on, or to before the first row; returns how many rows that are."""
        rows = 0 if snapshot is None else snapshot.rows
        if snapshot is None:
            self.memory.fill(0)
        else:
            self._make_room(0)
            self.memory[:] = snapshot.data.view(np.float32)
        if snapshot is not None and snapshot not in self.snapshots:
            self.snapshots.append(snapshot.hold())
        for later in [each for each in self.snapshots if each.rows > rows]:
            self.forget(later)
        self.committed, self._behind, self._is_torn = rows, [], False
        return rows

    def snapshot(self, length: int) -> Snapshot:
        if len(self.waiting(length)) or not length:
            raise KernelError(f"States have taken in {self.committed} rows: no snapshot can be taken at {length}.")
        if not self.snapshots or self.snapshots[-1].rows < length:
            made = Snapshot(length, self.state_nbytes)
            made.data[:] = self.memory.view(np.uint8)
            self.snapshots.append(made)
        return self.snapshots[-1]

    def forget(self, snapshot: Snapshot) -> None:
        """Holds a snapshot no longer."""
        self.snapshots.remove(snapshot)
        snapshot.let_go()

    def release(self) -> None:
        """Gives all memory back."""
        for snapshot in tuple(self.snapshots):
            self.forget(snapshot)
        self._clear()

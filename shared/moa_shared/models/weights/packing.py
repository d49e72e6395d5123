"""Packs a model's matrices for the kernels, in pieces and by all threads, straight from the mapped files.

State: none. Invariant: of the model only a piece for each thread is on the heap, whatever formats it is stored in.
"""

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from moa_kernels import Q8_0, KernelError, Tiles, pack, threads, tile_bytes, tile_count
from moa_kernels.bindings import LANES, STORED_FLOATS
from moa_kernels.tiles import Bytes

from moa_shared.models.tensors import BLOCKS, ROUTER_END
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, LAYER_EMBEDDINGS, MAPPED_BYTES, WeightReader
from moa_shared.programs.progress import Task

PAGE = 4096
_PIECE_BYTES = 1 << 20  # of tiles: they stay in a core's second cache until they are written


@dataclass(frozen=True, slots=True)
class Place:
    name: str
    kind: str  # the format that it is packed in
    outputs: int
    inputs: int
    start: int  # of its tiles, in bytes: a multiple of a page

    @property
    def nbytes(self) -> int:
        return tile_bytes(self.kind, self.outputs, self.inputs)

    def tiles(self, memory: Bytes) -> Tiles:
        """The matrix, given the memory of all tiles."""
        return Tiles(self.kind, self.outputs, self.inputs, memory[self.start : self.start + self.nbytes])


WritePiece = Callable[[int, Bytes], object]  # at which byte of all tiles, and what


def plan_places(reader: WeightReader, floats: str = Q8_0, only: Collection[str] | None = None) -> list[Place]:
    """Places for all matrices that the kernels compute with, or for those in `only`, one after the other.

    `floats`: what weights in floats become: Q8_0, or Q4_1. The head becomes Q8_0, and so do weights in formats that
    only the gguf package reads.
    """
    places: list[Place] = []
    at = 0
    names = reader.names()
    head, by_rows = (HEAD, EMBEDDINGS) if HEAD in names else (EMBEDDINGS, "")
    for name in names:
        if len(reader.shape(name)) != 2 or name in (by_rows, LAYER_EMBEDDINGS) or name.endswith(ROUTER_END):
            continue
        if only is not None and name not in only:
            continue
        stored = reader.format_of(name)
        outputs, inputs = reader.shape(name)
        place = Place(name, _kind(stored, Q8_0 if name == head else floats), outputs, inputs, at)
        try:
            at += -(-place.nbytes // PAGE) * PAGE
        except KernelError as error:
            raise _named(name, error) from error
        places.append(place)
    return places


def _kind(stored: str, floats: str) -> str:
    if stored in BLOCKS:
        return stored
    return floats if stored in STORED_FLOATS else Q8_0


def total_bytes(places: list[Place]) -> int:
    return places[-1].start + places[-1].nbytes if places else 0


def pack_places(reader: WeightReader, places: list[Place], write: WritePiece, task: Task) -> None:
    """Packs all matrices and hands the pieces over, on several threads and in any order; advances by files' bytes."""

    def run(piece: tuple[Place, range]) -> int:
        place, tiles = piece
        size = place.nbytes // tile_count(place.outputs)
        into = np.empty(len(tiles) * size, np.uint8)
        try:
            _pack_piece(reader, place, tiles, into)
        except KernelError as error:
            reader.check(place.name)  # says more of numbers that are not finite
            raise _named(place.name, error) from error
        write(place.start + tiles.start * size, into)
        return reader.stored_bytes(place.name) * len(tiles) // tile_count(place.outputs)

    looked_at = 0
    with ThreadPoolExecutor(threads()) as pool:
        try:
            for done in pool.map(run, _pieces(places)):
                task.advance(done)
                looked_at += done
                if looked_at > MAPPED_BYTES:
                    looked_at = 0
                    reader.drop_pages()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    reader.drop_pages()


def _pieces(places: list[Place]) -> Iterator[tuple[Place, range]]:
    for place in places:
        count = tile_count(place.outputs)
        step = max(1, _PIECE_BYTES * count // place.nbytes) if count else 1
        for start in range(0, count, step):
            yield place, range(start, min(start + step, count))


def _pack_piece(reader: WeightReader, place: Place, tiles: range, into: Bytes) -> None:
    stored, raw, heads = reader.stored(place.name)
    if stored == place.kind or stored in STORED_FLOATS:
        floats = "" if stored == place.kind else stored
        pack(place.kind, raw, place.outputs, place.inputs, into, stored=floats, heads=heads, tiles=tiles)
        return
    rows = reader.rows(place.name, np.arange(tiles.start * LANES, min(tiles.stop * LANES, place.outputs)))
    pack(place.kind, rows.view(np.uint8), len(rows), place.inputs, into, stored="f32")


def _named(name: str, error: KernelError) -> KernelError:
    return KernelError(f"{name.removesuffix('.weight')}: {error}")

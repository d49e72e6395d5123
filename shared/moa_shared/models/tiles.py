"""A model's matrices packed for the kernels, by all threads, in a file that every later start maps.

State: files `<cache>/tiles/<fingerprint>-<kernels>.tiles`: a page with magic and place of the table, the tiles of one
matrix after the other, each at a multiple of a page, and the table in JSON. Invariant: a file is written whole or not
at all, and used only for the model, the kernels' sources and the files (path, size, time) that it was made from. While
it is made only a piece for each thread is on the heap, whatever formats the model is stored in.
"""

import json
import os
import struct
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from moa_kernels import Q8_0, KernelError, Tiles, pack, populate, threads, tile_bytes, tile_count
from moa_kernels.bindings import LANES, STORED_FLOATS, aligned_zeros
from moa_kernels.tiles import Bytes
from moa_kernels.variants import source_hash

from moa_shared.models.files import ModelFiles
from moa_shared.models.storage import tensors
from moa_shared.models.storage.cache import combine, locked, require_space, writing
from moa_shared.models.weights import MAPPED_BYTES, WeightReader
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress, Task

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
        return Tiles(self.kind, self.outputs, self.inputs, memory[self.start : self.start + self.nbytes])


WritePiece = Callable[[int, Bytes], object]  # at which byte of all tiles, and what


def plan_places(reader: WeightReader, floats: str = Q8_0, only: Collection[str] | None = None) -> list[Place]:
    """Places for all matrices that the kernels compute with, or for those in `only`, one after the other.

    `floats`: what weights in floats become: Q8_0, or Q4_1; the head, and formats of the gguf package alone, are Q8_0.
    """
    places, at, names = list[Place](), 0, reader.names()
    head, by_rows = (tensors.HEAD, tensors.EMBEDDINGS) if tensors.HEAD in names else (tensors.EMBEDDINGS, "")
    for name in names:
        is_read_by_rows = name in (by_rows, tensors.LAYER_EMBEDDINGS) or name.endswith(tensors.IN_FLOAT32)
        if len(reader.shape(name)) != 2 or is_read_by_rows or (only is not None and name not in only):
            continue
        stored, (outputs, inputs) = reader.format_of(name), reader.shape(name)
        kind = floats if stored in STORED_FLOATS and name != head else Q8_0
        place = Place(name, stored if stored in tensors.BLOCKS else kind, outputs, inputs, at)
        try:
            at += -(-place.nbytes // PAGE) * PAGE
        except KernelError as error:
            raise KernelError(f"{name.removesuffix('.weight')}: {error}") from error
        places.append(place)
    return places


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
            reader.array(place.name)  # says more of numbers that are not finite
            raise KernelError(f"{place.name.removesuffix('.weight')}: {error}") from error
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
    own = range(place.outputs)[tiles.start * LANES : tiles.stop * LANES]
    stored, raw, heads = reader.stored(place.name, slice(own.start, own.stop))
    if stored == place.kind or stored in STORED_FLOATS:
        floats, chosen = "" if stored == place.kind else stored, tiles if len(raw) == place.outputs else None
        pack(place.kind, raw, len(raw), place.inputs, into, stored=floats, heads=heads, tiles=chosen)
        return
    rows = reader.rows(place.name, np.arange(own.start, own.stop))
    pack(place.kind, rows.view(np.uint8), len(rows), place.inputs, into, stored="f32")


_MAGIC = b"moatiles"
_START = struct.Struct("<8sQQ")  # magic, start and size of the table


def tile_file(files: ModelFiles, root: Path, only: Collection[str] | None = None, floats: str = Q8_0) -> Path:
    """Where the tiles of a model, or of some of its matrices, are kept for the kernels that are installed."""
    part = "" if only is None else f"-{combine(sorted(only))[:12]}"
    part += "" if floats == Q8_0 else f"-{floats}"
    return root / "tiles" / f"{files.fingerprint[:32]}-{source_hash()[:12]}{part}.tiles"


def tiles_in_memory(files: ModelFiles, progress: Progress, floats: str = Q8_0) -> dict[str, Tiles]:
    reader = WeightReader(files)
    places = plan_places(reader, floats)
    memory = aligned_zeros(total_bytes(places))

    def write(at: int, piece: Bytes) -> None:
        memory[at : at + len(piece)] = piece

    nbytes = sum(path.stat().st_size for path in files.weights)
    with progress.task(f"Packing {files.target_id}", nbytes, is_bytes=True) as task:
        pack_places(reader, places, write, task)
    return {place.name: place.tiles(memory) for place in places}


def map_tiles(
    files: ModelFiles, root: Path, progress: Progress, floats: str = Q8_0, only: Collection[str] | None = None
) -> dict[str, Tiles]:
    """The tiles of all matrices, mapped; made first where there is no such file yet, or the model's have changed.

    The pages that every forward needs are read now, in order. Those of experts are left alone: rows choose a few, and a
    model may be larger than the memory. DiskFullError, ConfigError, OSError: the file cannot be written. `only`: some
    matrices: from the whole model's file where that is there, else from one of their own.
    """
    whole = None if only is None else _read(tile_file(files, root), files)
    if only is not None and whole is not None and whole.keys() >= set(only):
        return {name: whole[name] for name in only}
    path = tile_file(files, root, only, floats)
    found = _read(path, files)
    if found is None:
        with locked(path, progress):
            found = _read(path, files)  # another process may have made it while we waited
            if found is None:
                _make(path, files, progress, only, floats)
                found = _read(path, files)
    if found is None:
        raise OSError(f"{path} cannot be read back")
    needed = [each for name, each in found.items() if only is None and not tensors.is_of_expert(name)]
    total = sum(each.memory.nbytes for each in needed)
    with progress.task(f"Mapping {files.target_id}", total, is_bytes=True) as task:
        for each in needed:
            populate(each.memory)
            task.advance(each.memory.nbytes)
    return found


def _read(path: Path, files: ModelFiles) -> dict[str, Tiles] | None:
    try:
        with path.open("rb") as file:
            magic, start, size = _START.unpack(file.read(_START.size))
            if magic != _MAGIC or start + size != os.fstat(file.fileno()).st_size:
                return None
            file.seek(start)
            table = parse_json(file.read(size))
        own = {str(each): (stat.st_size, stat.st_mtime_ns) for each in files.weights for stat in (each.stat(),)}
        made_from = {str(name): (nbytes, time) for name, nbytes, time in table["sources"]}
        changed = any(made_from[name] != own[name] for name in made_from.keys() & own.keys())
        if table["fingerprint"] != files.fingerprint or changed:
            return None
        data = tensors.map_file(path, large_pages=True)
        tiles = {
            str(name): Tiles(str(kind), int(outputs), int(inputs), data[int(at) : int(at) + int(nbytes)])
            for name, (kind, outputs, inputs, at, nbytes) in table["tensors"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error, KernelError):
        return None
    with suppress(OSError):  # on a read-only disk
        os.utime(path)  # so that its time says when it was used last
    return tiles


def _make(path: Path, files: ModelFiles, progress: Progress, only: Collection[str] | None, floats: str) -> None:
    reader = WeightReader(files)
    places = plan_places(reader, floats, only)
    stats = [(path, path.stat()) for path in files.weights]
    table = json.dumps(
        {
            "model": files.target_id,
            "fingerprint": files.fingerprint,
            "sources": [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats],
            "tensors": {
                each.name: [each.kind, each.outputs, each.inputs, PAGE + each.start, each.nbytes] for each in places
            },
        }
    ).encode()
    start = PAGE + -(-total_bytes(places) // PAGE) * PAGE
    require_space(path.parent, start + len(table), "The file of packed weights")
    source_bytes = sum(reader.stored_bytes(place.name) for place in places)
    with (
        progress.task(f"Packing {files.target_id} (once)", source_bytes, is_bytes=True) as task,
        writing(path.parent, "the file of packed weights"),
        whole_file(path, durable=True) as partial,
        partial.open("wb") as file,
    ):
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, start + len(table))

        def write(at: int, piece: Bytes) -> None:
            rest = memoryview(piece.data)
            while rest:
                written = os.pwrite(file.fileno(), rest, PAGE + at)
                rest, at = rest[written:], at + written

        pack_places(reader, places, write, task)
        file.write(_START.pack(_MAGIC, start, len(table)))
        file.seek(start)
        file.write(table)
    if hasattr(os, "posix_fadvise"):  # it is read again when it is mapped: in large pages, unlike what was written
        with path.open("rb") as written_file:
            os.posix_fadvise(written_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

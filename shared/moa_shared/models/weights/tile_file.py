"""A model's matrices packed for the kernels, in a file that every later start maps.

State: files `<cache>/tiles/<fingerprint>-<kernels>.tiles`: a page with magic and place of the table, the tiles of one
matrix after the other, each at a multiple of a page, and the table in JSON. Invariant: a file is written whole or not
at all, and used only for the model, the kernels' sources and the files (path, size, time) that it was made from.
"""

import json
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from moa_kernels import Q8_0, KernelError, QuantisedMatrix, Tiles, populate
from moa_kernels.bindings import aligned_zeros
from moa_kernels.tiles import Bytes
from moa_kernels.variants import source_hash

from moa_shared.models.sources.cache import combine, locked, require_space, writing
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tensors import Floats, is_of_expert, map_file
from moa_shared.models.weights.packing import PAGE, pack_places, plan_places, total_bytes
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, WeightReader
from moa_shared.plain_text import parse_json
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress

_MAGIC = b"moatiles"
_START = struct.Struct("<8sQQ")  # magic, start and size of the table


class TiledWeights:
    """The weights of a model: packed where there are tiles of a matrix; all else is read from its files."""

    def __init__(self, reader: WeightReader, tiles: Mapping[str, Tiles]) -> None:
        self.reader = reader
        self.tiles = tiles

    def names(self) -> list[str]:
        return self.reader.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self.reader.shape(name)

    def blocks(self, name: str) -> QuantisedMatrix | Tiles | None:
        """A matrix packed, or as `WeightReader.blocks`."""
        tiles = self.tiles.get(name)
        if tiles is None and name == HEAD and not self.reader.has_own_head:
            tiles = self.tiles.get(EMBEDDINGS)
        return self.reader.blocks(name) if tiles is None else tiles

    def array(self, name: str) -> Floats:
        return self.reader.array(name)

    def rows(self, name: str, ids: Sequence[int] | npt.NDArray[np.int64]) -> Floats:
        return self.reader.rows(name, ids)


def tile_file(files: ModelFiles, root: Path, only: Collection[str] | None = None, floats: str = Q8_0) -> Path:
    """Where the tiles of a model, or of some of its matrices, are kept for the kernels that are installed."""
    part = "" if only is None else f"-{combine(sorted(only))[:12]}"
    part += "" if floats == Q8_0 else f"-{floats}"
    return root / "tiles" / f"{files.fingerprint[:32]}-{source_hash()[:12]}{part}.tiles"


def tiles_in_memory(files: ModelFiles, progress: Progress, floats: str = Q8_0) -> dict[str, Tiles]:
    """The tiles of all matrices, in memory of this process; raises as `map_tiles`."""
    reader = WeightReader(files)
    places = plan_places(reader, floats)
    memory = aligned_zeros(total_bytes(places))

    def write(at: int, piece: Bytes) -> None:
        memory[at : at + len(piece)] = piece

    nbytes = sum(path.stat().st_size for path in files.weights)
    with progress.task(f"Packing {files.target_id}", nbytes, is_bytes=True) as task:
        pack_places(reader, places, write, task)
    return {place.name: place.tiles(memory) for place in places}


def map_tiles(files: ModelFiles, root: Path, progress: Progress, floats: str = Q8_0) -> dict[str, Tiles]:
    """The tiles of all matrices, mapped; made first where there is no such file yet, or the model's have changed.

    The pages that every forward needs are read now, in order, rather than one by one in the first. Those of experts are
    left alone: rows choose a few, and a model may be larger than the memory.

    DiskFullError, ConfigError, OSError: the file cannot be written. ModelSourceError, KernelError: weights that cannot
    be read, or that the kernels do not take.
    """
    found = _read_or_make(files, root, progress, floats=floats)
    needed = [each for name, each in found.items() if not is_of_expert(name)]
    total = sum(each.memory.nbytes for each in needed)
    with progress.task(f"Mapping {files.target_id}", total, is_bytes=True) as task:
        for each in needed:
            populate(each.memory)
            task.advance(each.memory.nbytes)
    return found


def map_some_tiles(files: ModelFiles, root: Path, only: Collection[str], progress: Progress) -> Mapping[str, Tiles]:
    """As `map_tiles`, of some matrices: from the whole model's file where that is there, else from one of their own."""
    whole = _read(tile_file(files, root), files)
    if whole is not None and whole.keys() >= set(only):
        return {name: whole[name] for name in only}
    return _read_or_make(files, root, progress, only)


def _read_or_make(
    files: ModelFiles, root: Path, progress: Progress, only: Collection[str] | None = None, floats: str = Q8_0
) -> dict[str, Tiles]:
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
    return found


@dataclass(frozen=True, slots=True)
class TileTable:
    """What a file of tiles says of itself. `tensors`: format, outputs, inputs, begin and size of the tiles in bytes."""

    model: str
    fingerprint: str
    sources: tuple[tuple[str, int, int], ...]  # path, size and time (in ns) of each file that it was made from
    tensors: Mapping[str, tuple[str, int, int, int, int]]

    def is_current(self, own: Collection[str]) -> bool:
        """Whether its files among `own` are as they were."""
        return all(_is_unchanged(Path(path), size, time) for path, size, time in self.sources if path in own)


def _is_unchanged(path: Path, size: int, time: int) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (size, time)


def read_table(path: Path) -> TileTable | None:
    """The table of a file of tiles; None where it is none, or not whole."""
    try:
        with path.open("rb") as file:
            magic, start, size = _START.unpack(file.read(_START.size))
            if magic != _MAGIC or start + size != os.fstat(file.fileno()).st_size:
                return None
            file.seek(start)
            table = parse_json(file.read(size))
        return TileTable(
            str(table.get("model", "")),
            str(table["fingerprint"]),
            tuple((str(name), int(nbytes), int(time)) for name, nbytes, time in table["sources"]),
            {
                str(name): (str(kind), int(outputs), int(inputs), int(at), int(nbytes))
                for name, (kind, outputs, inputs, at, nbytes) in table["tensors"].items()
            },
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error):
        return None


def _read(path: Path, files: ModelFiles) -> dict[str, Tiles] | None:
    """None where there is no file, or one of another model or another version."""
    table = read_table(path)
    if table is None or table.fingerprint != files.fingerprint or not table.is_current({*map(str, files.weights)}):
        return None
    try:
        data = map_file(path, large_pages=True)
        tiles = {
            name: Tiles(kind, outputs, inputs, data[at : at + nbytes])
            for name, (kind, outputs, inputs, at, nbytes) in table.tensors.items()
        }
    except (OSError, KernelError):
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

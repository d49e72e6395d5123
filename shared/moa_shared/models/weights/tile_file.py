"""A model's matrices packed for the kernels, in a file that every later start maps.

State: files `<cache>/tiles/<fingerprint>-<kernels>.tiles`: a page with magic and place of the table, the tiles of one
matrix after the other, each at a multiple of a page, and the table in JSON. Invariant: a file is written whole or not
at all, and used only for the model, the kernels' sources and the files (path, size, time) that it was made from.
"""

from __future__ import annotations

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

from moa_shared.models.sources.cache import locked, require_space, writing
from moa_shared.models.sources.digest import combine
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tensors.formats import Floats
from moa_shared.models.tensors.safetensors import map_file
from moa_shared.models.weights.experts import is_of_expert
from moa_shared.models.weights.packing import PAGE, Place, pack_places, plan_places, total_bytes
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, WeightReader
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.text.json_text import parse_json

_MAGIC = b"moatiles"
_START = struct.Struct("<8sQQ")  # magic, start and size of the table


class TiledWeights:
    """The weights of a model, whose matrices are packed where there are tiles of them; all else is read from its files.

    Args:
        tiles: by name.
    """

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
    """The tiles of all matrices, in memory of this process.

    Raises:
        ModelSourceError, KernelError: as of `map_tiles`.
    """
    reader = WeightReader(files)
    places = plan_places(reader, floats)
    memory = aligned_zeros(total_bytes(places))

    def write(at: int, piece: Bytes) -> None:
        memory[at : at + len(piece)] = piece

    with progress.task(f"Packing {files.target_id}", _source_bytes(files), is_bytes=True) as task:
        pack_places(reader, places, write, task)
    return {place.name: place.tiles(memory) for place in places}


def map_tiles(files: ModelFiles, root: Path, progress: Progress, floats: str = Q8_0) -> dict[str, Tiles]:
    """The tiles of all matrices, mapped; made first where there is no such file yet, or the model's have changed.

    Args:
        floats: as of `plan_places`.

    Raises:
        DiskFullError, ConfigError, OSError: the file cannot be written.
        ModelSourceError: weights that cannot be read.
        KernelError: weights that the kernels do not take.
    """
    found = _read_or_make(files, root, progress, floats=floats)
    _bring_in(found, files, progress)
    return found


def map_some_tiles(files: ModelFiles, root: Path, only: Collection[str], progress: Progress) -> Mapping[str, Tiles]:
    """As `map_tiles`, of some matrices: from the whole model's file where that is there, else from one of their own."""
    whole = _read(tile_file(files, root), files)
    if whole is not None and whole.keys() >= set(only):
        return {name: whole[name] for name in only}
    return _read_or_make(files, root, progress, only)


def _read_or_make(
    files: ModelFiles,
    root: Path,
    progress: Progress,
    only: Collection[str] | None = None,
    floats: str = Q8_0,
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


def _bring_in(tiles: Mapping[str, Tiles], files: ModelFiles, progress: Progress) -> None:
    """Reads the pages that every forward needs now, in order, rather than one by one in the first.

    Those of experts are left alone: rows choose a few, and a model may be larger than the memory.
    """
    needed = [each for name, each in tiles.items() if not is_of_expert(name)]
    total = sum(each.memory.nbytes for each in needed)
    with progress.task(f"Mapping {files.target_id}", total, is_bytes=True) as task:
        for each in needed:
            populate(each.memory)
            task.advance(each.memory.nbytes)


@dataclass(frozen=True, slots=True)
class TileTable:
    """What a file of tiles says of itself.

    Args:
        model: its name.
        sources: path, size and time (in ns) of each file that it was made from.
        tensors: by name: format, outputs, inputs, and where its tiles begin and how many bytes they take.
    """

    model: str
    fingerprint: str
    sources: tuple[tuple[str, int, int], ...]
    tensors: Mapping[str, tuple[str, int, int, int, int]]

    def is_current(self) -> bool:
        """Whether those of the files that are there are as they were."""
        return all(_is_unchanged(Path(path), size, time) for path, size, time in self.sources if Path(path).exists())


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
    if table is None or table.fingerprint != files.fingerprint or not _is_of(table, files):
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


def _is_of(table: TileTable, files: ModelFiles) -> bool:
    """Whether the files are those of the table; the same model elsewhere is known by its fingerprint."""
    own = {str(path) for path in files.weights}
    return all(_is_unchanged(Path(path), size, time) for path, size, time in table.sources if path in own)


def _is_unchanged(path: Path, size: int, time: int) -> bool:
    try:
        stat = path.stat()
    except OSError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (size, time)


def _sources(files: ModelFiles) -> list[tuple[str, int, int]]:
    stats = [(path, path.stat()) for path in files.weights]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _source_bytes(files: ModelFiles) -> int:
    return sum(path.stat().st_size for path in files.weights)


def _make(path: Path, files: ModelFiles, progress: Progress, only: Collection[str] | None, floats: str) -> None:
    reader = WeightReader(files)
    places = plan_places(reader, floats, only)
    sources = _sources(files)
    start = PAGE + -(-total_bytes(places) // PAGE) * PAGE
    table = _table(files, sources, places)
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
    _forget_pages(path)


def _forget_pages(path: Path) -> None:
    """Has the system read a written file again when it is mapped: in large pages, unlike what was written."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _table(files: ModelFiles, sources: list[tuple[str, int, int]], places: list[Place]) -> bytes:
    tensors = {
        place.name: [place.kind, place.outputs, place.inputs, PAGE + place.start, place.nbytes] for place in places
    }
    table = {"model": files.target_id, "fingerprint": files.fingerprint, "sources": sources, "tensors": tensors}
    return json.dumps(table).encode()

"""A model's matrices packed for the kernels, in a file that every later start maps.

State: files `<cache>/tiles/<fingerprint>-<kernels>.tiles`: a page with magic and place of the table, the tiles of one
matrix after the other, each at a multiple of a page, and the table in JSON. Invariant: a file is written whole or not
at all, and used only for the model, the kernels' sources and the files (path, size, time) that it was made from.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from moa_kernels import KernelError, QuantisedMatrix, Tiles, quantised
from moa_kernels.tiles import packed
from moa_kernels.variants import source_hash

from moa_shared.models.sources.cache import locked, require_space
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tensors.safetensors import map_file
from moa_shared.models.weights.weights import EMBEDDINGS, HEAD, WeightReader
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.text.json_text import parse_json

_MAGIC = b"moatiles"
_PAGE = 4096
_START = struct.Struct("<8sQQ")  # magic, start and size of the table


class TiledWeights(WeightReader):
    """The weights of a model, whose matrices are packed where a file of tiles holds them.

    Args:
        tiles: by name; others are read from the model's files.
    """

    def __init__(self, files: ModelFiles, tiles: dict[str, Tiles]) -> None:
        super().__init__(files)
        self._tiles = tiles

    def blocks(self, name: str) -> QuantisedMatrix | Tiles | None:  # type: ignore[override]
        """A matrix packed, or as `WeightReader.blocks`."""
        tiles = self._tiles.get(self._alias(name))
        return super().blocks(name) if tiles is None else tiles


def tile_file(files: ModelFiles, root: Path) -> Path:
    """Where the tiles of a model are kept for the kernels that are installed."""
    return root / "tiles" / f"{files.fingerprint[:32]}-{source_hash()[:12]}.tiles"


def map_tiles(files: ModelFiles, root: Path, progress: Progress) -> dict[str, Tiles]:
    """The tiles of all matrices, mapped; made first where there is no such file yet, or the model's have changed.

    Raises:
        DiskFullError, ConfigError, OSError: the file cannot be written.
        ModelSourceError: weights that cannot be read.
        KernelError: weights that the kernels do not take.
    """
    path = tile_file(files, root)
    found = _read(path, files)
    if found is None:
        with locked(path, progress):
            found = _read(path, files)  # another process may have made it while we waited
            if found is None:
                _make(path, files, progress)
                found = _read(path, files)
    if found is None:
        raise OSError(f"{path} cannot be read back")
    return found


def _read(path: Path, files: ModelFiles) -> dict[str, Tiles] | None:
    """None where there is no file, or one of another model or another version."""
    try:
        data = map_file(path)
        magic, start, size = _START.unpack(data[: _START.size].tobytes())
        if magic != _MAGIC or start + size != len(data):
            return None
        table = parse_json(data[start:].tobytes())
        if table["fingerprint"] != files.fingerprint or not _is_of(table["sources"], files):
            return None
        return {
            str(name): Tiles(str(kind), int(outputs), int(inputs), data[int(at) : int(at) + int(nbytes)])
            for name, (kind, outputs, inputs, at, nbytes) in table["tensors"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, struct.error, KernelError):
        return None


def _is_of(sources: list[list[Any]], files: ModelFiles) -> bool:
    """Whether the files are those of the table; the same model elsewhere is known by its fingerprint."""
    known = {str(path): [size, time] for path, size, time in sources}
    now = {path: [size, time] for path, size, time in _sources(files)}
    return all(known[path] == now[path] for path in known.keys() & now.keys())


def _sources(files: ModelFiles) -> list[tuple[str, int, int]]:
    stats = [(path, path.stat()) for path in files.weights]
    return [(str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats]


def _make(path: Path, files: ModelFiles, progress: Progress) -> None:
    total = sum(each.stat().st_size for each in files.weights)
    require_space(path.parent, total + total // 8, "The file of packed weights")
    sources = _sources(files)
    with (
        progress.task(f"Packing {files.target_id} (once)", total, is_bytes=True) as task,
        whole_file(path) as partial,
        partial.open("wb") as file,
    ):
        file.write(bytes(_PAGE))
        tensors = {}
        for name, tiles, stored in _packed(WeightReader(files)):
            at = _pad(file)
            file.write(tiles.memory.data)
            tensors[name] = [tiles.kind, tiles.outputs, tiles.inputs, at, tiles.memory.nbytes]
            task.advance(stored)
        start = _pad(file)
        table = json.dumps({"fingerprint": files.fingerprint, "sources": sources, "tensors": tensors}).encode()
        file.write(table)
        file.seek(0)
        file.write(_START.pack(_MAGIC, start, len(table)))


def _packed(reader: WeightReader) -> Iterator[tuple[str, Tiles, int]]:
    """Each matrix's tiles and its bytes in the file, two matrices at a time."""
    names = [name for name in reader.names() if len(reader.shape(name)) == 2 and _is_taken(reader, name)]

    def pack(name: str) -> Tiles:
        try:
            matrix = reader.blocks(name)
            if matrix is None:
                matrix = quantised(reader.array(name))
            matrix.check()
            return packed(matrix)
        except KernelError as error:
            raise KernelError(f"{name.removesuffix('.weight')}: {error}") from error

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(pack, name) for name in names[:1]]
        for index, name in enumerate(names):
            if index + 1 < len(names):
                waiting.append(pool.submit(pack, names[index + 1]))
            yield name, waiting.pop(0).result(), reader.stored_bytes(name)
            reader.drop_pages()


def _is_taken(reader: WeightReader, name: str) -> bool:
    """Whether the kernels compute with a matrix: embeddings are read by rows, unless they are the head too."""
    return name != EMBEDDINGS or HEAD not in reader.names()


def _pad(file: BinaryIO) -> int:
    """The next page's start, up to which zeros are written."""
    file.write(bytes(-file.tell() % _PAGE))
    return file.tell()

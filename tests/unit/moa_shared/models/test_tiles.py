import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from moa_kernels import (
    KernelError,
    Linear,
    QuantisedMatrix,
    Tiles,
    in_four_bits,
    quantised,
    set_threads,
    threads,
    variant_name,
)
from moa_kernels.tiles import Bytes, packed
from moa_shared.errors import DiskFullError, ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models import tiles as tile_file
from moa_shared.models.storage.tensors import EMBEDDINGS
from moa_shared.models.tiles import Place, map_tiles, pack_places, plan_places, total_bytes
from moa_shared.programs.progress import Progress

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import save_tiny_model

SILENT = Progress()
pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="packs for compiled kernels")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16"])
@pytest.mark.parametrize("untied", [False, True])
def test_mapped_tiles_give_the_bits_of_packed_weights(
    write_gguf: GgufWriter, cache: Path, kind: str, untied: bool
) -> None:
    files = resolve(str(write_gguf(kind=kind, untied=untied)), cache)
    tiles = map_tiles(files, cache, SILENT)
    assert all(each.memory.ctypes.data % 64 == 0 for each in tiles.values())
    assert len(tiles) == 2 * 7 + 1
    reader, rows = WeightReader(files), np.random.default_rng(0).standard_normal((3, 64), np.float32)
    for name, each in tiles.items():
        matrix = reader.blocks(name)
        expected = Linear([reader.array(name) if matrix is None else matrix])
        inputs = np.ascontiguousarray(rows[:, : each.inputs])
        assert np.array_equal(Linear([each])(inputs), expected(inputs)), name


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages")
def test_tiles_are_mapped_in_large_pages_and_read_for_them(
    write_gguf: GgufWriter, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading weights in pages of 4 KiB makes a plain step a seventh longer; what was written lies in such pages."""
    forgotten: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda file, at, size, advice: forgotten.append(advice))
    files = resolve(str(write_gguf()), cache)
    tiles = map_tiles(files, cache, SILENT)
    assert forgotten == [os.POSIX_FADV_DONTNEED]
    mapped = Path("/proc/self/smaps").read_text().partition(str(tile_file.tile_file(files, cache)))[2]
    assert " hg" in mapped.partition("VmFlags:")[2].partition("\n")[0], len(tiles)


def made_again(files: ModelFiles, cache: Path) -> bool:
    path = tile_file.tile_file(files, cache)
    before = path.stat().st_ino
    map_tiles(files, cache, SILENT)
    return path.stat().st_ino != before


def test_they_are_made_once_and_again_where_anything_has_changed(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf()
    files = resolve(str(path), cache)
    held = map_tiles(files, cache, SILENT)
    assert not made_again(files, cache)
    copied = shutil.copy(path, path.with_name("copy.gguf"))
    assert not made_again(resolve(str(copied), cache), cache)
    os.utime(path, (1, 1))
    assert made_again(files, cache)
    made = tile_file.tile_file(files, cache)
    content = made.read_bytes()
    for damaged in (b"", b"moatiles", content[:-1], b"x" + content[1:], content.replace(b'"tensors"', b'"tensory"')):
        made.unlink()
        made.write_bytes(damaged)
        assert made_again(files, cache)
        assert made.read_bytes() == content
    assert {name: bytes(each.memory) for name, each in held.items()} == {
        name: bytes(each.memory) for name, each in map_tiles(files, cache, SILENT).items()
    }


def test_a_disk_that_fills_while_tiles_are_written_leaves_nothing(
    write_gguf: GgufWriter, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    files = resolve(str(write_gguf()), cache)
    for call in ("posix_fallocate", "pwrite"):
        with monkeypatch.context() as patch:
            patch.setattr(os, call, no_room)
            with pytest.raises(DiskFullError, match="ran full while writing the file of packed weights"):
                map_tiles(files, cache, SILENT)
        assert not list(cache.glob("tiles/*.tiles*[!k]"))


def pack_all(reader: WeightReader, places: list[Place]) -> dict[str, Tiles]:
    memory = np.zeros(total_bytes(places), np.uint8)

    def write(at: int, piece: Bytes) -> None:
        memory[at : at + len(piece)] = piece

    with Progress().task("Packing") as task:
        pack_places(reader, places, write, task)
    assert getattr(task, "done", 0) > 0
    return {place.name: place.tiles(memory) for place in places}


@pytest.fixture
def _many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_file, "_PIECE_BYTES", 1)


@pytest.mark.usefixtures("_many_pieces")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q5_0", "F16", "BF16", "F32"])
@pytest.mark.parametrize("floats", ["q8_0", "q4_1"])
def test_pieces_by_several_threads_are_the_whole(
    write_gguf: GgufWriter, tmp_path: Path, kind: str, floats: str
) -> None:
    reader = WeightReader(resolve(str(write_gguf(kind=kind)), tmp_path))
    before = threads()
    set_threads(3)
    tiles = pack_all(reader, plan_places(reader, floats))
    set_threads(before)
    for name, each in tiles.items():
        matrix = reader.blocks(name)
        if matrix is None:
            is_head = name == EMBEDDINGS  # which are tied to it
            assert each.kind == ("q8_0" if is_head else floats)
            matrix = (quantised if each.kind == "q8_0" else in_four_bits)(reader.array(name))
        assert isinstance(matrix, QuantisedMatrix)
        np.testing.assert_array_equal(each.memory, packed(matrix).memory, err_msg=name)


def test_what_cannot_be_packed_is_named(write_gguf: GgufWriter, tmp_path: Path) -> None:
    with says(KernelError, "model.layers.0.mlp.down_proj: It has 40 inputs, which is no multiple of 32."):
        plan_places(
            WeightReader(resolve(str(save_tiny_model(tmp_path / "odd", intermediate_size=40)), tmp_path / "cache"))
        )
    for poison, error, words in (
        (float("nan"), ModelSourceError, "The tensor model.layers.1.mlp.up_proj.weight of .* not finite"),
        (1e7, KernelError, "model.layers.1.mlp.up_proj: .* too large"),
    ):
        reader = WeightReader(resolve(str(write_gguf(f"{poison}.gguf", poison=poison)), tmp_path / "cache"))
        with pytest.raises(error, match=words):
            pack_all(reader, plan_places(reader))

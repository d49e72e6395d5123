from __future__ import annotations

import os
from pathlib import Path

import pytest
from moa_kernels import variant_name
from moa_server.commands.cache import LEFTOVER, MODEL, PARTS, TILES, CacheItem, find_items, list_cache, remove_items
from moa_shared.models import resolve
from moa_shared.models.sources.cache import locked
from moa_shared.models.weights.tile_file import map_tiles, tile_file
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_gguf import GgufWriter, write_gguf  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="packs for compiled kernels")


@pytest.fixture
def model(write_gguf: GgufWriter, tmp_path: Path) -> Path:  # noqa: F811
    """A GGUF file, packed."""
    path = write_gguf()
    root = tmp_path / "cache"
    map_tiles(resolve(str(path), root), root, SilentProgress())
    return path


@pytest.fixture
def root(model: Path) -> Path:
    return model.parent / "cache"


def only(root: Path, kind: str) -> CacheItem:
    [item] = [item for item in list_cache(root) if item.kind == kind]
    return item


def test_a_model_has_an_entry_and_tiles(root: Path, model: Path) -> None:
    assert {item.kind for item in list_cache(root)} == {TILES, MODEL}
    for item in list_cache(root):
        assert (item.model, item.sources, item.useless) == ("tiny", (model,), "")
    tiles = only(root, TILES)
    assert tiles.nbytes == tiles.path.stat().st_size


def test_each_start_is_a_use(root: Path, model: Path) -> None:
    path = tile_file(resolve(str(model), root), root)
    os.utime(path, (1, 1))
    assert only(root, TILES).used == 1
    map_tiles(resolve(str(model), root), root, SilentProgress())
    assert only(root, TILES).used > 1


def test_what_was_made_from_a_file_that_is_gone_is_of_no_use(root: Path, model: Path) -> None:
    model.unlink()
    assert {item.useless for item in list_cache(root)} == {"tiny.gguf is no longer there"}


def test_tiles_of_a_file_that_has_changed_are_of_no_use(root: Path, model: Path) -> None:
    os.utime(model, (1, 1))
    assert only(root, TILES).useless == "its model's file has changed"
    assert only(root, MODEL).useless == ""  # which looks at the content


def test_what_this_version_does_not_use_is_of_no_use(root: Path) -> None:
    tiles, entry = only(root, TILES).path, only(root, MODEL).path
    tiles.rename(tiles.with_name(f"{tiles.name[:32]}-0123456789ab.tiles"))
    entry.rename(entry.with_name("gguf-1-v1"))
    assert only(root, TILES).useless == "for other kernels than those installed"
    assert only(root, MODEL).useless == "of another version of moa"
    only(root, TILES).path.write_bytes(b"moatiles")
    assert only(root, TILES).useless == "is damaged"


def test_leftovers_are_of_no_use_unless_somebody_writes_them(root: Path) -> None:
    final = root / "tiles" / "a.tiles"
    final.with_name("a.tiles.partial").write_bytes(b"1234")
    assert only(root, LEFTOVER).useless == "was never completed"
    with locked(final):
        assert only(root, LEFTOVER).useless == ""
    remove_items([only(root, LEFTOVER)], root)
    (root / "served-parts" / "b-0-v6.part-xyz").mkdir(parents=True)
    assert only(root, LEFTOVER).useless == "was never completed"


def test_items_are_found_by_model_and_path_and_removed(root: Path) -> None:
    (root / "served-parts" / "c-0-v6").mkdir(parents=True)
    items = list_cache(root)
    assert len(find_items(items, "tiny", root)) == 2
    [parts] = find_items(items, "served-parts/c-0-v6", root)
    assert parts.kind == PARTS
    assert find_items(items, str(parts.path), root) == [parts]
    assert find_items(items, "", root) == [parts]  # whose model is not known
    remove_items(items, root)
    assert list_cache(root) == []

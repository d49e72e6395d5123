"""`moa-server cache` as a user sees it."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from moa_kernels import variant_name
from moa_server.cli import cli
from moa_shared.errors import NotFoundError
from moa_shared.models import resolve
from moa_shared.models.weights.tile_file import map_tiles
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises
from tests.support.tiny_gguf import GgufWriter

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="packs for compiled kernels")


@pytest.fixture
def root(write_gguf: GgufWriter, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    map_tiles(resolve(str(write_gguf()), folder), folder, SilentProgress())
    return folder


def run(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["cache", *arguments, "--cache-dir", str(root)], catch_exceptions=False)


def steady(text: str, root: Path) -> str:
    text = text.replace(str(root.parent), "/FOLDER")
    text = re.sub(r"-v\d+", "-vN", re.sub(r"\d+(\.\d)? (k?B|bytes)", "SIZE", text))
    return re.sub(r"[0-9a-f]{32}(-[0-9a-f]{12})?", "ID", re.sub(r"\d{4}-\d{2}-\d{2}", "DATE", text))


def test_list_shows_what_there_is(root: Path) -> None:
    done = run(root, "list")
    assert re.sub(r" +", " ", steady(done.stdout, root)) == snapshot("""\
model what size last used made from path in the cache
tiny packed weights SIZE DATE /FOLDER/tiny.gguf tiles/ID.tiles
tiny model SIZE DATE /FOLDER/tiny.gguf models/gguf-ID-vN
""")
    assert steady(done.stderr, root) == snapshot("SIZE in /FOLDER/cache\n")
    rows = [json.loads(line) for line in run(root, "list", "--json").stdout.splitlines()]
    assert [(row["kind"], row["model"], row["useless"]) for row in rows] == snapshot(
        [("packed weights", "tiny", ""), ("model", "tiny", "")]
    )
    assert rows[0]["sources"] == [{"path": str(root.parent / "tiny.gguf"), "exists": True}]


def test_remove_takes_a_model_or_a_path(root: Path) -> None:
    with raises(NotFoundError, snapshot("Nothing in TMP/cache is of 'huge'. `moa-server cache list` shows all of it.")):
        run(root.absolute(), "remove", "huge")
    tiles = next(iter(root.glob("tiles/*.tiles"))).relative_to(root)
    assert run(root, "remove", str(tiles)).stdout.startswith(f"removed {tiles}, ")
    assert run(root, "remove", "tiny").stdout.startswith("removed models/gguf-")
    assert run(root, "list").stdout == f"There is nothing in {root}.\n"


def test_prune_removes_what_is_of_no_use(root: Path) -> None:
    assert run(root, "prune").stderr == f"Everything in {root} is of use.\n"
    os.utime(root.parent / "tiny.gguf", (1, 1))
    assert steady(run(root, "prune", "--dry-run").stdout, root) == snapshot(
        "would remove tiles/ID.tiles, SIZE (its model's file has changed)\n"
    )
    assert len(list(root.glob("tiles/*.tiles"))) == 1
    assert steady(run(root, "prune").stdout, root) == snapshot(
        "removed tiles/ID.tiles, SIZE (its model's file has changed)\n"
    )
    assert not list(root.glob("tiles/*.tiles"))
    assert len(list(root.glob("models/*-v*[0-9]"))) == 1
    run(root, "prune", "--days", "0")
    assert not list(root.glob("models/*-v*[0-9]"))

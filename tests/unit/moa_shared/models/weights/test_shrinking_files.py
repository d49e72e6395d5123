"""Files that shrink while a process has them mapped: in processes of their own, which end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from moa_kernels import variant_name
from moa_shared.models import resolve

from tests.support.tiny_gguf import GgufWriter, write_gguf  # noqa: F401 (a fixture)

pytestmark = pytest.mark.skipif(variant_name() == "numpy", reason="the guard is part of the kernels")
SENTENCE = (
    "Error: {path} can no longer be read: it was shortened or overwritten while it was in use, or its disk failed. "
    "Put the whole file back and start again.\n"
)
START = """
import os, sys
from pathlib import Path
import numpy as np
from moa_kernels import Linear
from moa_shared.models import WeightReader, resolve
from moa_shared.models.weights.tile_file import map_tiles, tile_file
from moa_shared.programs.progress import SilentProgress
model, cache = Path(sys.argv[1]), Path(sys.argv[2])
files = resolve(str(model), cache)
"""
READS_WEIGHTS = """
reader = WeightReader(files)
os.truncate(model, 4096)
reader.rows("model.embed_tokens.weight", [200])
"""
COMPUTES = """
tiles = map_tiles(files, cache, SilentProgress())
os.truncate(tile_file(files, cache), 4096)
Linear([tiles["model.layers.1.mlp.up_proj.weight"]])(np.ones((1, 32), np.float32))
"""


@pytest.mark.parametrize(("program", "pattern"), [(READS_WEIGHTS, "tiny.gguf"), (COMPUTES, "cache/tiles/*.tiles")])
def test_the_process_says_which_file(
    write_gguf: GgufWriter,  # noqa: F811
    tmp_path: Path,
    program: str,
    pattern: str,
) -> None:
    model, cache = write_gguf(), tmp_path / "cache"
    resolve(str(model), cache)
    done = subprocess.run(
        [sys.executable, "-c", START + program, str(model), str(cache)], capture_output=True, text=True
    )
    [path] = tmp_path.glob(pattern)
    assert (done.returncode, done.stderr) == (74, SENTENCE.format(path=path))

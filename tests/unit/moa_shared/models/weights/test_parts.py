import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from moa_server.service.fetch import write_part
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, load_part, part_names, resolve
from moa_shared.models.tensors import quantise_q8_0, write_tensors
from moa_shared.models.weights.parts import layer_names, layer_places
from moa_shared.models.weights.weights import EMBEDDINGS, FINAL_NORM, HEAD
from safetensors.torch import load_file

from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter

pytestmark = pytest.mark.torch

UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def files(write_gguf: GgufWriter, cache: Path) -> ModelFiles:
    return resolve(str(write_gguf(kind="Q4_1", untied=True)), cache)


def test_the_parts_of_a_device(files: ModelFiles) -> None:
    assert part_names(files) == [EMBEDDINGS, FINAL_NORM, HEAD]
    last = layer_names(files, 1)
    assert FINAL_NORM in last
    assert UP in last
    assert not [name for name in last if ".layers.0." in name or name in (EMBEDDINGS, HEAD)]
    assert layer_places(files, [1])[UP] == "model.layers.0.mlp.up_proj.weight"
    with says(ModelSourceError, "tiny has the layers 0 to 1, requested were [2]"):
        layer_places(files, [2])


def test_packed_parts_are_the_targets_own_blocks(files: ModelFiles, tmp_path: Path) -> None:
    reader, path = WeightReader(files), tmp_path / "part.safetensors"
    write_part(reader, [EMBEDDINGS, *layer_names(files, 1)], path, "packed")
    part = WeightReader(dataclasses.replace(files, weights=(path,)))
    assert sorted(part.names()) == sorted([EMBEDDINGS, *layer_names(files, 1)])
    for name in part.names():
        assert np.array_equal(part.array(name), reader.array(name)), name
        assert (part.blocks(name) is None) == (len(part.shape(name)) == 1)
    stored = load_file(path)
    assert stored[f"{UP}.q4_1"].dtype == torch.uint8
    assert stored[FINAL_NORM].dtype == torch.float32


def test_other_matrices_are_packed_in_eight_bits(model_folder: Path, cache: Path, tmp_path: Path) -> None:
    files = resolve(str(model_folder), cache)
    path = tmp_path / "part.safetensors"
    write_part(WeightReader(files), [UP], path, "packed")
    blocks = WeightReader(dataclasses.replace(files, weights=(path,))).blocks(UP)
    assert blocks is not None
    assert blocks.kind == "q8_0"
    exact = WeightReader(files).array(UP)
    assert np.array_equal(blocks.raw, quantise_q8_0(exact))
    assert np.abs(blocks.dequantised() - exact).max() <= np.abs(exact).max() / 127


def test_parts_in_bfloat16(files: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    write_part(WeightReader(files), [UP, FINAL_NORM], path, "bf16")
    expected = load_part(files, [UP, FINAL_NORM], torch.bfloat16)
    stored = load_file(path)
    assert stored.keys() == expected.keys()
    assert all(torch.equal(stored[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "rows", [np.ones((4, 48)), np.full((4, 32), 1e8)], ids=["no groups of 32", "too large for a scale"]
)
def test_what_8_bits_do_not_hold_stays_in_bfloat16(files: ModelFiles, tmp_path: Path, rows: np.ndarray) -> None:
    odd, path = tmp_path / "odd.safetensors", tmp_path / "part.safetensors"
    write_tensors(odd, {UP: rows.astype(np.float32)})
    write_part(WeightReader(dataclasses.replace(files, weights=(odd,))), [UP], path, "packed")
    assert load_file(path)[UP].dtype == torch.bfloat16

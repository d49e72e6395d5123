"""Experts from safetensors: apart, fused, and as gpt-oss has them, in floats and in MXFP4; and in files of tiles."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_kernels import QuantisedMatrix
from moa_kernels.bindings import MXFP4
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models import tiles as tile_file
from moa_shared.models.network.network import Network
from moa_shared.models.tiles import map_tiles
from moa_shared.programs.progress import SilentProgress
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support.families import MIXTURES, tiny_mixture, weights_of
from tests.support.messages import says
from tests.support.tiny_models import SIZES, Floats, save_tokenizer
from tests.unit.moa_shared.models.network.test_network import TEXT, needs_kernels, of_transformers

pytestmark = pytest.mark.torch

LAYER = "model.layers.1.mlp.experts"


def saved(folder: Path, model: PreTrainedModel, *, fused: bool = False) -> Path:
    """A folder as transformers writes it; `fused`: with the tensors that the model has in memory."""
    model.save_pretrained(folder)
    save_tokenizer(folder)
    if fused:
        save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")
    return folder


def in_mxfp4(folder: Path, model: PreTrainedModel) -> Path:
    """As `saved`, with random experts in MXFP4, which the model gets too."""
    saved(folder, model)
    path, random = folder / "model.safetensors", np.random.default_rng(5)
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        blocks = torch.from_numpy(random.integers(0, 256, (count, outputs, inputs // 32, 16), np.uint8))
        scales = torch.from_numpy(random.integers(122, 126, (count, outputs, inputs // 32), np.uint8))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        dense = convert_moe_packed_tensors(blocks.clone(), scales.clone(), dtype=torch.float32)
        model.get_parameter(name).data.copy_(dense)
    save_file(tensors, path)
    return folder


def logits_of(files: ModelFiles, weights: Any = None, *, plain: bool = False) -> Floats:
    network = Network(weights or WeightReader(files), files.config, plain=plain)
    target = KernelTarget(network, SIZES["max_position_embeddings"], kv="f32" if plain else "f16")
    return target.forward(target.new_cache(), TEXT).logits


@needs_kernels
@pytest.mark.parametrize("fused", [False, True], ids=["as saved", "fused"])
@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_read_as_transformers_has_them(family: str, fused: bool, tmp_path: Path, cache: Path) -> None:
    model = tiny_mixture(family)
    files = resolve(str(saved(tmp_path / "tiny", model, fused=fused)), cache)
    reader, expected = WeightReader(files), weights_of(model).tensors
    assert sorted(reader.names()) == sorted(expected)
    for name, tensor in expected.items():
        assert reader.shape(name) == tensor.shape
        assert reader.stored_bytes(name) == tensor.nbytes
        np.testing.assert_array_equal(reader.array(name), tensor, err_msg=name)
    np.testing.assert_allclose(logits_of(files, plain=True), of_transformers(model), rtol=0, atol=3e-4)


@needs_kernels
def test_experts_of_gpt_oss_keep_their_codes_in_mxfp4(tmp_path: Path, cache: Path) -> None:
    model = tiny_mixture("gpt-oss")
    files = resolve(str(in_mxfp4(tmp_path / "tiny", model)), cache)
    reader = WeightReader(files)
    for name, tensor in weights_of(model).tensors.items():
        np.testing.assert_array_equal(reader.array(name), tensor, err_msg=name)
        blocks = reader.blocks(name)
        if ".experts." in name and name.endswith("weight"):
            assert isinstance(blocks, QuantisedMatrix)
            assert (blocks.kind, reader.format_of(name)) == (MXFP4, MXFP4)
            assert reader.stored_bytes(name) == blocks.raw.nbytes
            np.testing.assert_array_equal(blocks.dequantised(), tensor)
    np.testing.assert_allclose(logits_of(files, plain=True), of_transformers(model), rtol=0, atol=3e-3)


@needs_kernels
@pytest.mark.parametrize("write", [saved, in_mxfp4])
def test_a_file_of_tiles_holds_the_experts(write: Any, tmp_path: Path, cache: Path) -> None:
    files = resolve(str(write(tmp_path / "tiny", tiny_mixture("gpt-oss"))), cache)
    tiles = map_tiles(files, cache, SilentProgress())
    assert {name for name in WeightReader(files).names() if ".experts." in name and name.endswith("weight")} <= set(
        tiles
    )
    assert logits_of(files, WeightReader(files).with_tiles(tiles)).tobytes() == logits_of(files).tobytes()


@needs_kernels
def test_only_what_every_row_needs_is_read_at_a_start(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = resolve(str(saved(tmp_path / "tiny", tiny_mixture("qwen 3 with dense layers"))), cache)
    read: list[int] = []
    monkeypatch.setattr(tile_file, "populate", lambda data: read.append(data.ctypes.data))
    tiles = map_tiles(files, cache, SilentProgress())
    expected = {each.memory.ctypes.data for name, each in tiles.items() if ".experts." not in name}
    assert set(read) == expected
    assert len(expected) < len(tiles)


@needs_kernels
@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (f"{LAYER}.down_proj_scales", None, "The tensor model.layers.1.mlp.experts.down_proj_blocks of"),
        (f"{LAYER}.down_proj_scales", (6, 64, 2), "The tensor model.layers.1.mlp.experts.down_proj_blocks of"),
        (f"{LAYER}.gate_up_proj_bias", (5, 192), "The int8 kernels do not compute this target: model.layers.1.mlp:"),
        ("model.layers.1.self_attn.sinks", None, "The int8 kernels do not compute this target: model.layers.1 lacks"),
        ("model.layers.1.mlp.router.weight", None, "The weights of tiny hold no tensor model.layers.1.mlp.gate.weight"),
        ("model.layers.1.self_attn.sinks", (3,), "The int8 kernels do not compute this target: sinks has the shape"),
    ],
)
def test_tensors_that_are_missing_or_misshapen_are_refused(
    name: str, shape: tuple[int, ...] | None, message: str, tmp_path: Path, cache: Path
) -> None:
    folder = in_mxfp4(tmp_path / "tiny", tiny_mixture("gpt-oss"))
    tensors = load_file(folder / "model.safetensors")
    kind = tensors.pop(name).dtype
    if shape is not None:
        tensors[name] = torch.zeros(shape, dtype=kind)
    save_file(tensors, folder / "model.safetensors")
    with says(ModelSourceError, message):
        logits_of(resolve(str(folder), cache))

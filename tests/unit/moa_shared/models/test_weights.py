"""Files that shrink while a process has them mapped: in processes of their own, which end."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from moa_kernels import QuantisedMatrix, quantised, variant_name
from moa_kernels.bindings import MXFP4
from moa_server.service.fetch import write_part
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, WeightReader, load_target_model, resolve
from moa_shared.models import tiles as tile_file
from moa_shared.models.network.network import Network
from moa_shared.models.storage.tensors import EMBEDDINGS, FINAL_NORM, HEAD, write_tensors
from moa_shared.models.tiles import map_tiles
from moa_shared.models.weights import layer_names, layer_places
from moa_shared.programs.progress import Progress
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.support.families import MIXTURES, tiny_mixture, weights_of
from tests.support.messages import says
from tests.support.tiny_gguf import GgufWriter
from tests.support.tiny_models import Floats, save_tokenizer
from tests.support.torch_models import rewrite
from tests.unit.moa_shared.models.network.test_network import needs_kernels, of_transformers, text_of

pytestmark = pytest.mark.torch

QUERIES = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def files(model_folder: Path, cache: Path) -> ModelFiles:
    return resolve(str(model_folder), cache)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_0"])
def test_blocks_are_the_files_own_in_transformers_order(
    write_gguf: GgufWriter, cache: Path, kind: str, family: str
) -> None:
    path = write_gguf(kind=kind, architecture=family)
    raw = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    reader = WeightReader(resolve(str(path), cache))
    for name in reader.names():
        blocks = reader.blocks(name)
        if reader.array(name).ndim != 2:
            assert blocks is None
            continue
        assert isinstance(blocks, QuantisedMatrix)
        assert blocks.kind == kind.lower()
        assert blocks.shape == reader.shape(name)
        assert np.array_equal(blocks.dequantised(), reader.array(name))
    up, queries = reader.blocks("model.layers.1.mlp.up_proj.weight"), reader.blocks(QUERIES)
    assert isinstance(up, QuantisedMatrix)
    assert isinstance(queries, QuantisedMatrix)
    assert np.array_equal(up.raw.reshape(64, -1), raw["blk.1.ffn_up.weight"])
    moved = not np.array_equal(queries.raw.reshape(32, -1), raw["blk.1.attn_q.weight"])
    assert moved == (family == "llama")


def test_biases_of_a_llama_are_unpaired_like_their_rows(write_gguf: GgufWriter, cache: Path) -> None:
    path = write_gguf(biases=True)
    [stored] = [tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name == "blk.0.attn_k.bias"]
    bias = WeightReader(resolve(str(path), cache)).array("model.layers.0.self_attn.k_proj.bias")
    assert np.array_equal(bias, stored.reshape(2, 4, 2).swapaxes(1, 2).reshape(-1))
    assert not np.array_equal(bias, stored)


def test_a_tied_head_is_the_embeddings(write_gguf: GgufWriter, cache: Path) -> None:
    reader = WeightReader(resolve(str(write_gguf()), cache))
    assert HEAD not in reader.names()
    assert np.array_equal(reader.array(HEAD), reader.array(EMBEDDINGS))
    blocks = reader.blocks(HEAD)
    assert blocks is not None
    assert blocks.shape == reader.shape(EMBEDDINGS)
    untied = WeightReader(resolve(str(write_gguf("untied.gguf", untied=True)), cache))
    assert HEAD in untied.names()
    assert not np.array_equal(untied.array(HEAD), untied.array(EMBEDDINGS))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "BF16"])
def test_rows_are_those_of_the_whole(write_gguf: GgufWriter, cache: Path, kind: str) -> None:
    reader = WeightReader(resolve(str(write_gguf(kind=kind)), cache))
    for name in (EMBEDDINGS, HEAD, QUERIES):
        ids = [5, 0, 5, 31]
        assert np.array_equal(reader.rows(name, ids), reader.array(name)[ids])
        assert np.array_equal(reader.rows(name, np.array(ids)), reader.array(name)[ids])
    assert reader.rows(EMBEDDINGS, []).shape == (0, 32)
    with pytest.raises(IndexError):
        reader.rows(EMBEDDINGS, [10**6])


@pytest.mark.parametrize(
    ("name", "tensor"),
    [("x", torch.zeros(2, 3, dtype=torch.int64)), ("x.q8_0", torch.zeros(2, 3, 20, dtype=torch.uint8))],
)
def test_tensors_of_another_kind(model_folder: Path, cache: Path, name: str, tensor: torch.Tensor) -> None:
    rewrite(model_folder, **{name: tensor})
    files = resolve(str(model_folder), cache)
    with pytest.raises(ModelSourceError, match=rf"The tensor {name} of .* which moa does not read"):
        WeightReader(files)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_that_are_not_finite_are_refused(model_folder: Path, cache: Path, dtype: torch.dtype) -> None:
    weights = load_file(model_folder / "model.safetensors")[QUERIES].to(dtype)
    weights[3, 4] = float("-inf")
    rewrite(model_folder, **{QUERIES: weights})
    reader = WeightReader(resolve(str(model_folder), cache))
    for read in (reader.array, lambda name: reader.rows(name, [3])):
        with says(ModelSourceError, "The tensor model.layers.1.self_attn.q_proj.weight of tiny-llama holds numbers"):
            read(QUERIES)
    assert reader.rows(QUERIES, [4]).shape == (1, 32)


def test_scales_that_are_not_finite_are_refused(write_gguf: GgufWriter, cache: Path) -> None:
    files = resolve(str(write_gguf(kind="Q4_0")), cache)
    path = cache / "changed.gguf"
    for kind, place in (("Q8_0", 0), ("Q4_1", 2), ("Q4_0", 0)):
        source = write_gguf(f"{kind}.gguf", kind=kind)
        [tensor] = [tensor for tensor in gguf.GGUFReader(source).tensors if tensor.name == "blk.1.attn_q.weight"]
        content = bytearray(source.read_bytes())
        at = int(tensor.data_offset) + place
        content[at : at + 2] = np.array([np.nan], "<f2").tobytes()
        path.write_bytes(content)
        reader = WeightReader(dataclasses.replace(files, weights=(path,)))
        reads = (reader.array,) if kind == "Q4_0" else (reader.array, reader.blocks)
        for read in reads:
            with says(ModelSourceError, "The tensor model.layers.1.self_attn.q_proj.weight of tiny holds numbers that"):
                read(QUERIES)


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
from moa_shared.models.tiles import map_tiles, tile_file
from moa_shared.programs.progress import Progress
model, cache = Path(sys.argv[1]), Path(sys.argv[2])
files = resolve(str(model), cache)
"""
READS_WEIGHTS = """
reader = WeightReader(files)
os.truncate(model, 4096)
reader.rows("model.embed_tokens.weight", [200])
"""
COMPUTES = """
tiles = map_tiles(files, cache, Progress())
os.truncate(tile_file(files, cache), 4096)
Linear([tiles["model.layers.1.mlp.up_proj.weight"]])(np.ones((1, 32), np.float32))
"""


@pytest.mark.skipif(variant_name() == "numpy", reason="the guard is part of the kernels")
@pytest.mark.parametrize(("program", "pattern"), [(READS_WEIGHTS, "tiny.gguf"), (COMPUTES, "cache/tiles/*.tiles")])
def test_the_process_says_which_file(write_gguf: GgufWriter, tmp_path: Path, program: str, pattern: str) -> None:
    model, cache = write_gguf(), tmp_path / "cache"
    resolve(str(model), cache)
    done = subprocess.run(
        [sys.executable, "-c", START + program, str(model), str(cache)], capture_output=True, text=True
    )
    [path] = tmp_path.glob(pattern)
    assert (done.returncode, done.stderr) == (74, SENTENCE.format(path=path))


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def files_of_parts(write_gguf: GgufWriter, cache: Path) -> ModelFiles:
    return resolve(str(write_gguf(kind="Q4_1", untied=True)), cache)


def test_the_parts_of_a_device(files_of_parts: ModelFiles) -> None:
    assert layer_names(files_of_parts, 0) == [FINAL_NORM]
    last = layer_names(files_of_parts, 1)
    assert FINAL_NORM in last
    assert UP in last
    assert not [name for name in last if ".layers.0." in name or name in (EMBEDDINGS, HEAD)]
    assert layer_places(files_of_parts, 1)[UP] == "model.layers.0.mlp.up_proj.weight"
    with says(ModelSourceError, "tiny has 2 layers, requested were 3 of them"):
        layer_names(files_of_parts, 3)


def test_packed_parts_are_the_targets_own_blocks(files_of_parts: ModelFiles, tmp_path: Path) -> None:
    reader, path = WeightReader(files_of_parts), tmp_path / "part.safetensors"
    write_part(reader, [EMBEDDINGS, *layer_names(files_of_parts, 1)], path, "packed")
    part = WeightReader(dataclasses.replace(files_of_parts, weights=(path,)))
    assert sorted(part.names()) == sorted([EMBEDDINGS, *layer_names(files_of_parts, 1)])
    for name in part.names():
        assert np.array_equal(part.array(name), reader.array(name)), name
        assert (part.blocks(name) is None) == (len(part.shape(name)) == 1)
    stored = load_file(path)
    assert stored[f"{UP}.q4_1"].dtype == torch.uint8
    assert stored[FINAL_NORM].dtype == torch.float32


def test_other_matrices_are_packed_in_eight_bits(model_folder: Path, cache: Path, tmp_path: Path) -> None:
    files_of_parts = resolve(str(model_folder), cache)
    path = tmp_path / "part.safetensors"
    write_part(WeightReader(files_of_parts), [UP], path, "packed")
    blocks = WeightReader(dataclasses.replace(files_of_parts, weights=(path,))).blocks(UP)
    assert isinstance(blocks, QuantisedMatrix)
    assert blocks.kind == "q8_0"
    exact = WeightReader(files_of_parts).array(UP)
    assert np.array_equal(blocks.raw, quantised(exact).raw)
    assert np.abs(blocks.dequantised() - exact).max() <= np.abs(exact).max() / 127


def test_parts_in_bfloat16(files_of_parts: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "part.safetensors"
    write_part(WeightReader(files_of_parts), [UP, FINAL_NORM], path, "bf16")
    reader, stored = WeightReader(files_of_parts), load_file(path)
    assert stored.keys() == {UP, FINAL_NORM}
    assert all(torch.equal(each, torch.from_numpy(reader.array(name)).bfloat16()) for name, each in stored.items())


def test_what_8_bits_do_not_hold_stays_in_bfloat16(files_of_parts: ModelFiles, tmp_path: Path) -> None:
    odd, path = tmp_path / "odd.safetensors", tmp_path / "part.safetensors"
    for rows in (np.ones((4, 48)), np.full((4, 32), 1e8)):  # no groups of 32; too large for a scale
        write_tensors(odd, {UP: rows.astype(np.float32)})
        write_part(WeightReader(dataclasses.replace(files_of_parts, weights=(odd,))), [UP], path, "packed")
        assert load_file(path)[UP].dtype == torch.bfloat16


def test_the_model_is_transformers_own(files: ModelFiles) -> None:
    expected = AutoModelForCausalLM.from_pretrained(files.folder, dtype=torch.float32).state_dict()
    model = load_target_model(files)
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    state = model.state_dict()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        assert torch.equal(tensor, expected[name]), name


def test_torch_gets_no_weights_that_lack_a_tensor_or_have_another_shape(model_folder: Path, cache: Path) -> None:
    for change, words in (
        ({FINAL_NORM: torch.ones(5)}, f"do not fit its config.json ({FINAL_NORM} has the shape [5], expected"),
        ({FINAL_NORM: torch.ones(32), UP: None}, f"its config.json (1 tensors are missing, {UP} among them)"),
    ):
        rewrite(model_folder, **change)
        with says(ModelSourceError, words):
            load_target_model(resolve(str(model_folder), cache))


def test_torch_gets_no_configuration_that_transformers_refuses(model_folder: Path, cache: Path) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"num_attention_heads": 24}), "utf-8")
    with says(ModelSourceError, "The config.json of tiny-llama makes no sense to transformers (Class validation error"):
        load_target_model(resolve(str(model_folder), cache))


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
    target = KernelTarget(network, files.config["max_position_embeddings"], kv="f32" if plain else "f16")
    return target.forward(target.new_cache(), text_of(files.config)).logits


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
    tiles = map_tiles(files, cache, Progress())
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
    tiles = map_tiles(files, cache, Progress())
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

"""Each family of mixtures out of a GGUF file: the weights and the logits of the model that it was written from."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.configuration import make_config
from moa_shared.models.gguf.header import read_header
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.weights.tile_file import TiledWeights, map_tiles
from moa_shared.models.weights.weights import WeightReader
from moa_shared.programs.progress import SilentProgress
from transformers import PreTrainedModel

from tests.support.families import tiny_mixture, weights_of
from tests.support.family_gguf import write_family_gguf
from tests.support.messages import says
from tests.unit.moa_shared.models.network.test_network import needs_kernels, of_transformers
from tests.unit.moa_shared.models.weights.test_experts import logits_of

pytestmark = pytest.mark.torch

IN_GGUF = ["qwen 3", "mixtral", "olmoe", "olmoe with clips", "gpt-oss", "gemma 4"]
GATES = "blk.1.ffn_gate_exps.weight"


def model_of(family: str) -> PreTrainedModel:
    """Its gates are limited as llama.cpp limits them: by its code, not by what a file says."""
    return tiny_mixture(family, **({"swiglu_limit": 7.0} if family == "gpt-oss" else {}))


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("tiny", path.parent, make_config(read_header(path)), (path,), "tiny" * 8, "")


@needs_kernels
@pytest.mark.parametrize("family", IN_GGUF)
def test_weights_and_logits_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    files = files_of(write_family_gguf(model, tmp_path / "tiny.gguf"))
    reader, expected = WeightReader(files), weights_of(model).tensors
    assert set(reader.names()) == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(reader.array(name), tensor, err_msg=name)
    np.testing.assert_allclose(logits_of(files, plain=True), of_transformers(model), rtol=0, atol=3e-4)


def test_a_file_with_tensors_for_each_expert_is_refused(tmp_path: Path) -> None:
    path = write_family_gguf(
        tiny_mixture("mixtral"), tmp_path / "tiny.gguf", **{"blk.0.ffn_down.0.weight": np.zeros((64, 96))}
    )
    with says(ModelSourceError, "TMP/tiny.gguf has a tensor for each expert, as files from before April 2024 do"):
        make_config(read_header(path))


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4", "F16"])
def test_experts_in_all_formats_are_read_and_packed(kind: str, tmp_path: Path) -> None:
    path = write_family_gguf(tiny_mixture("gpt-oss"), tmp_path / "tiny.gguf", gguf.GGMLQuantizationType[kind])
    files = files_of(path)
    whole = next(each for each in gguf.GGUFReader(path).tensors if each.name == GATES)
    values = gguf.quants.dequantize(whole.data, gguf.GGMLQuantizationType[kind])
    reader = WeightReader(files)
    for number, own in enumerate(values):
        name = f"model.layers.1.mlp.experts.{number}.gate_proj.weight"
        blocks = reader.blocks(name)
        np.testing.assert_array_equal(reader.array(name) if blocks is None else blocks.dequantised(), own)
        assert reader.stored_bytes(name) == whole.data.nbytes // len(values)
    tiles = map_tiles(files, tmp_path, SilentProgress())
    assert tiles["model.layers.1.mlp.experts.5.down_proj.weight"].kind == ("q8_0" if kind == "F16" else kind.lower())
    assert logits_of(files, TiledWeights(WeightReader(files), tiles)).tobytes() == logits_of(files).tobytes()


@pytest.mark.parametrize("family", IN_GGUF)
def test_the_configuration_is_transformers_own(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    config, theirs = make_config(read_header(write_family_gguf(model, tmp_path / "tiny.gguf"))), model.config.to_dict()
    generic = {"dtype", "head_dim", "eos_token_id", "bos_token_id", "pad_token_id", "architectures", "mlp_bias"}
    for key in config.keys() - generic:
        if key == "rope_parameters" and "rope_theta" in theirs[key]:
            assert config[key] == pytest.approx(theirs[key])
        elif key in theirs:
            assert config[key] == theirs[key], key
    assert config["model_type"] == model.config.model_type


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("qwen 3", {"expert_count": None}, "The GGUF file TMP/tiny.gguf does not set qwen3moe.expert_count"),
        ("qwen 3", {"expert_count": 0}, "The config.json of tiny.gguf has num_experts = 0, expected a whole number"),
        ("qwen 3", {"expert_used_count": 11}, "The config.json of tiny.gguf has num_experts_per_tok = 11, expected"),
        ("mixtral", {"expert_used_count": 0}, "The config.json of tiny.gguf has num_experts_per_tok = 0, expected a"),
        ("qwen 3", {"expert_feed_forward_length": 64}, "blk.0.ffn_gate_exps.weight of TMP/tiny.gguf has the shape"),
        ("olmoe", {"attention.clamp_kqv": -8.0}, "The config.json of tiny.gguf has clip_qkv = -8.0, which moa does"),
        ("gpt-oss", {GATES: None}, "TMP/tiny.gguf lacks 1 tensors, blk.1.ffn_gate_exps.weight among them"),
        ("gpt-oss", {"blk.1.attn_sinks.weight": None}, "TMP/tiny.gguf lacks 1 tensors, blk.1.attn_sinks.weight"),
        ("gpt-oss", {"blk.1.ffn_up_exps.bias": None}, "TMP/tiny.gguf lacks 1 tensors, blk.1.ffn_up_exps.bias among"),
        ("mixtral", {GATES: np.zeros((3, 96, 64))}, "blk.1.ffn_gate_exps.weight of TMP/tiny.gguf has the shape [3,"),
        ("mixtral", {"blk.1.ffn_gate_inp.weight": np.zeros((5, 64))}, "blk.1.ffn_gate_inp.weight of TMP/tiny.gguf"),
    ],
)
def test_files_that_make_no_sense_are_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_family_gguf(tiny_mixture(family), tmp_path / "tiny.gguf", **changes)
    with says(ModelSourceError, message):
        make_config(read_header(path))

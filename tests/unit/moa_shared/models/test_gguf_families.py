"""Each family out of a GGUF file: the weights and the logits of the model that it was written from."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from moa_kernels import QuantisedMatrix
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import load_target_model, resolve
from moa_shared.models.files import ModelFiles
from moa_shared.models.gguf_configuration import make_config
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.models.tiles import map_tiles
from moa_shared.models.weights import WeightReader
from moa_shared.programs.progress import SilentProgress
from transformers import PreTrainedModel

from tests.support.families import GGUF_FAMILIES, tiny_in_gguf, tiny_mixture, weights_of
from tests.support.family_gguf import write_family_gguf
from tests.support.messages import says
from tests.unit.moa_shared.models.network.test_network import MIXTURE, TEXT, needs_kernels, of_transformers
from tests.unit.moa_shared.models.test_weights import logits_of

pytestmark = pytest.mark.torch

MIXTURES = [MIXTURE + each for each in ("qwen 3", "mixtral", "olmoe", "olmoe with clips", "gpt-oss", "gemma 4")]
GATES, GEMMA = "blk.1.ffn_gate_exps.weight", "gemma 4 with embeddings by layer"
ALIKE = [each for each in GGUF_FAMILIES if not each.startswith(("llama 3", "mistral", "phi", "gemma 4"))]
QWEN, OSS = MIXTURE + "qwen 3", MIXTURE + "gpt-oss"


def model_of(family: str) -> PreTrainedModel:
    """gpt-oss's gates are limited as llama.cpp limits them: by its code, not by what a file says."""
    if not family.startswith(MIXTURE):
        return tiny_in_gguf(family)
    return tiny_mixture(family.removeprefix(MIXTURE), **({"swiglu_limit": 7.0} if "gpt-oss" in family else {}))


def files_of(path: Path) -> ModelFiles:
    return ModelFiles("tiny", path.parent, make_config(read_header(path)), (path,), "tiny" * 8, "")


@needs_kernels
@pytest.mark.parametrize("family", [*GGUF_FAMILIES, *MIXTURES])
def test_weights_and_logits_are_those_of_the_model(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    files = files_of(write_family_gguf(model, tmp_path / "tiny.gguf"))
    reader, of_state = WeightReader(files), {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    expected = weights_of(model).tensors if family.startswith(MIXTURE) else of_state
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    assert set(reader.names()) - tied == expected.keys() - tied
    for name, tensor in expected.items():
        np.testing.assert_allclose(reader.array(name), tensor, rtol=0, atol=2e-7, err_msg=name)
    np.testing.assert_allclose(logits_of(files, plain=True), of_transformers(model), rtol=0, atol=3e-4)


@pytest.mark.parametrize(
    "family",
    ["llama 3", "llama, linear", "qwen 2", "qwen 3", "gemma 2", "gemma 3", "phi 3", "olmo 3", "smollm 3", "granite"],
)
def test_the_torch_levels_read_them_too(tmp_path: Path, cache: Path, family: str) -> None:
    model = tiny_in_gguf(family)
    files = resolve(str(write_family_gguf(model, tmp_path / "tiny.gguf")), cache)
    target = TorchTarget(load_target_model(files))
    logits = target.forward(target.new_cache(), TEXT).logits
    np.testing.assert_allclose(logits, of_transformers(model), rtol=0, atol=3e-4)


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
        found = blocks.dequantised() if isinstance(blocks, QuantisedMatrix) else reader.array(name)
        np.testing.assert_array_equal(found, own)
        assert reader.stored_bytes(name) == whole.data.nbytes // len(values)
    tiles = map_tiles(files, tmp_path, SilentProgress())
    assert tiles["model.layers.1.mlp.experts.5.down_proj.weight"].kind == ("q8_0" if kind == "F16" else kind.lower())
    assert logits_of(files, WeightReader(files).with_tiles(tiles)).tobytes() == logits_of(files).tobytes()


@pytest.mark.parametrize("family", [*ALIKE, *MIXTURES])
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
        (QWEN, {"expert_count": None}, "The GGUF file TMP/tiny.gguf does not set qwen3moe.expert_count"),
        (QWEN, {"expert_count": 0}, "The config.json of tiny.gguf has num_experts = 0, expected a whole number"),
        (QWEN, {"expert_used_count": 11}, "The config.json of tiny.gguf has num_experts_per_tok = 11, expected"),
        (QWEN, {"expert_feed_forward_length": 64}, "do not compute this target: model.layers.0.mlp: Its experts"),
        (OSS, {GATES: None}, "The weights of tiny hold no tensor model.layers.1.mlp.experts.0.gate_proj.weight"),
        (OSS, {"blk.1.attn_sinks.weight": None}, "do not compute this target: model.layers.1 lacks self_attn.sinks"),
        ("qwen 3", {"blk.1.attn_q_norm.weight": None}, "target: model.layers.1 lacks self_attn.q_norm.weight"),
        ("qwen 2", {"blk.0.attn_v.bias": None}, "target: model.layers.0 lacks self_attn.v_proj.bias"),
        (OSS, {"blk.1.ffn_up_exps.bias": None}, "do not compute this target: model.layers.1"),
        (OSS, {"blk.1.ffn_gate_inp.weight": np.zeros((5, 64))}, "do not compute this target: model.layers.1.mlp"),
        (GEMMA, {"attention.sliding_window_pattern": [True] * 6}, "TMP/tiny.gguf has a last layer with a window,"),
        (GEMMA, {"attention.sliding_window_pattern": [True, False]}, "does not say which of 6 layers see a window"),
        (GEMMA, {"attention.shared_kv_layers": 6}, "shares the keys and values of 6 of 6 layers, which moa"),
        (GEMMA, {"feed_forward_length": [96, 96, 96, 192, 96, 192]}, "has MLPs of the widths [96, 96, 96,"),
        (GEMMA, {"feed_forward_length": [96, 96]}, "says gemma4.feed_forward_length = '[96, 96]', expected 6"),
        (GEMMA, {"attention.head_count_kv": [2, 3, 2, 2, 2, 2]}, "has 4 query heads over 3"),
        (GEMMA, {"rope.dimension_count_swa": 16}, "rotates 16 of a head's 32 numbers, which moa does not"),
        (GEMMA, {"rope.freq_base_swa": None}, "The GGUF file TMP/tiny.gguf does not set gemma4.rope.freq_base_swa"),
    ],
)
def test_files_that_make_no_sense_are_refused(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = write_family_gguf(model_of(family), tmp_path / "tiny.gguf", **changes)
    with says(ModelSourceError, message):
        logits_of(files_of(path))

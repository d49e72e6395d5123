"""What configurations may say; Gemma 4: heads, its keys and values in bytes, and the text part of what sees pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa_kernels import Heads, StateShape
from moa_kernels.library import library
from moa_server.verifier.kernel_target import KernelTarget
from moa_server.verifier.memory_check import SizedTarget
from moa_shared.errors import ModelSourceError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.network.network import Network
from moa_shared.models.network.plan import cached_heads, kv_width, plan_of, state_shapes
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.tensors import LAYER_EMBEDDINGS
from moa_shared.models.tiles import plan_places
from moa_shared.models.weights import layer_places
from safetensors.numpy import load_file, save_file

from tests.support.families import tiny_dense, tiny_mixture
from tests.support.messages import says
from tests.support.tiny_models import SIZES, save_tokenizer

GOOD = {"vocab_size": 8, "hidden_size": 4, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}

pytestmark = pytest.mark.torch


TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(50)]
SHARING, HYBRID, SHARED = "gemma 4 with embeddings by layer", "qwen 3.5", "qwen 3 next"
needs_kernels = pytest.mark.skipif(library() is None, reason="there are no kernels for this CPU")


def tiny(family: str) -> dict[str, Any]:
    found: dict[str, Any] = (tiny_mixture if family in (MIXTURE, SHARED) else tiny_dense)(family).config.to_dict()
    return found


QWEN_2, SMOLLM, MIXTURE = (
    GOOD | {"model_type": "qwen2"},
    GOOD | {"model_type": "smollm3", "rms_norm_eps": 1e-5},
    "qwen 3",
)


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (QWEN_2, {"model_type": "gpt2"}, "it is of the model family 'gpt2', which moa does not serve"),
        *(
            (QWEN_2, {"model_type": family}, f"it is of the model family '{family}', which moa does not serve")
            for family in ("kimi_linear", "glm5_next", "bailing_hybrid", "qwen4_exp")
        ),
        (QWEN_2, {"model_type": None}, "it is of the model family None, which moa does not serve"),
        (QWEN_2, {"vocab_size": 0}, "vocab_size = 0, expected a whole number from 1 to"),
        (QWEN_2, {"hidden_size": "many"}, "hidden_size = 'many', expected a whole number from"),
        (QWEN_2, {"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, expected a whole"),
        (QWEN_2, {"rope_scaling": [[[]]]}, "rotary parameters that make no sense, which"),
        (QWEN_2, {"layer_types": 7}, "values that make no sense ('int' object is not iterable),"),
        (QWEN_2, {"use_sliding_window": True}, "use_sliding_window, and no sliding_window, which"),
        (QWEN_2, {"layer_types": ["full_attention", "sliding_attention"]}, "layers with a sliding"),
        (QWEN_2, {"num_attention_heads": 4, "num_key_value_heads": 3}, "4 query heads over 3"),
        (QWEN_2, {"num_attention_heads": 8}, "8 query heads over 8 key/value heads of 0 numbers"),
        (QWEN_2, {"head_dim": 3}, "1 query heads over 1 key/value heads of 3 numbers, which moa"),
        (QWEN_2, {"logits_scaling": float("nan")}, "logits_scaling = nan, which moa does not"),
        (QWEN_2, {"logits_scaling": 0, "rms_norm_eps": 1e-5}, "values that make no sense (float di"),
        (QWEN_2, {"rms_norm_eps": []}, "values that make no sense (float() argument must be"),
        (SMOLLM, {"sliding_window": 0}, "sliding_window = 0"),
        (SMOLLM, {"sliding_window": "5"}, "sliding_window = '5'"),
        (SMOLLM, {"layer_types": ["full_attention"] * 2}, "values that make no sense"),
        (SMOLLM, {"layer_types": ["linear_attention"]}, "layer_types"),
        (SMOLLM, {"no_rope_layers": [1, 1]}, "values that make no sense"),
        (SMOLLM, {"no_rope_layer_interval": 0}, "no_rope_layer_interval = 0"),
        (SMOLLM, {"use_bidirectional_attention": True}, "bidirectional attention"),
        (SMOLLM, {"hidden_act": "gelu"}, "the activation 'gelu', which moa"),
        (MIXTURE, {"num_experts": 0}, "num_experts = 0, expected a whole number from 1"),
        (MIXTURE, {"decoder_sparse_step": 0}, "decoder_sparse_step = 0, expected a"),
        (MIXTURE, {"mlp_only_layers": 3}, "values that make no sense (argument of type"),
        (MIXTURE, {"use_sliding_window": True, "sliding_window": 0}, "sliding_window ="),
        (SHARING, {"num_kv_shared_layers": 5}, "values that make no sense"),
        (SHARING, {"num_kv_shared_layers": 6}, "num_kv_shared_layers = 6, which moa does not"),
        (SHARING, {"vocab_size_per_layer_input": 96}, "embeddings by layer for 96 of 97 tokens,"),
        (SHARING, {"hidden_size_per_layer_input": "x"}, "values that make no sense"),
        (
            SHARING,
            {"per_layer_config": {"1": {"head_dim": 64, "sliding_window": 3}}},
            "per_layer_config = {'1': {'head",
        ),
        (
            SHARING,
            {"per_layer_config": {each: {"head_dim": 64} for each in "13"}},
            "layer 5, which reads keys and values",
        ),
        (SHARING, {"per_layer_config": {"0": {"num_key_value_heads": 3}}}, "4 query heads over 3"),
        (SHARING, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0, which moa"),
        (HYBRID, {"linear_num_value_heads": 0}, "linear_num_value_heads = 0, expected a whole number from 1"),
        (HYBRID, {"linear_num_key_heads": 4}, "6 value heads of 64 numbers over 4 keys of 32, which moa"),
        *(
            (
                HYBRID,
                {"linear_conv_kernel_dim": taps},
                f"linear_conv_kernel_dim = {taps!r}, expected a whole number from 2",
            )
            for taps in (1, 9, "4", 3.5)
        ),
        (HYBRID, {"layer_types": ["linear_attention"] * 4}, "no layer with attention, which moa does"),
        (HYBRID, {"layer_types": ["sliding_attention"] * 4}, "layer_types = ['sliding_attention',"),
        (HYBRID, {"full_attention_interval": 0}, "full_attention_interval = 0, expected a whole number"),
        (HYBRID, {"attention_bias": True}, "biases of gated attention, which moa"),
        (SHARED, {"shared_expert_intermediate_size": 0}, "shared_expert_intermediate_size = 0, expected"),
        (SHARING, {"use_bidirectional_attention": "all"}, "bidirectional attention, which writes"),
    ],
)
def test_what_makes_no_sense_is_refused(config: dict[str, Any] | str, changes: dict[str, Any], message: str) -> None:
    with says(ModelSourceError, message if "model_type" in changes else f"The config.json of it has {message}"):
        check_family((tiny(config) if isinstance(config, str) else config) | changes, "it")


def test_what_a_hybrid_keeps() -> None:
    config = tiny(SHARED)
    assert state_shapes(config) == [StateShape(6, 2, 32, 64, 4)] * 3
    assert cached_heads(config) == [Heads(2, 64)] * 2
    plan = plan_of(config)
    assert plan.why_not_alone(4) == ""
    assert plan.why_not_alone(3) == "layer 3 has a recurrent state, which holds all rows before a device's first"
    assert state_shapes(tiny(SHARING)) == []
    named = {key: value for key, value in config.items() if key not in ("layer_types", "linear_value_head_dim")}
    assert state_shapes(named) == [StateShape(6, 2, 32, 128, 4)] * 4  # by the defaults of its family


@pytest.mark.parametrize("rope", [None, {"rope_type": "llama3"}, {"rope_type": "yarn"}, {"type": "linear"}])
def test_rotary_scaling_by_position_alone_is_served(rope: dict[str, object] | None) -> None:
    check_family({**GOOD, "model_type": "llama", "rope_scaling": rope}, "it")


def test_heads_are_found_in_old_and_new_configurations() -> None:
    new = tiny_dense("gemma 4").config.to_dict()
    old = {key: value for key, value in new.items() if key != "per_layer_config"}
    old |= {"global_head_dim": 64, "num_global_key_value_heads": 1, "layer_types": None, "num_hidden_layers": 6}
    assert cached_heads(new) == [Heads(2, 32), Heads(1, 64)] * 2
    assert cached_heads(old) == [Heads(2, 32)] * 5 + [Heads(1, 64)]
    assert cached_heads(old | {"attention_k_eq_v": False})[-1] == Heads(2, 64)
    assert kv_width(old | {"attention_k_eq_v": False}) == 256


@needs_kernels
@pytest.mark.parametrize("kv", ["f16", "q8"])
@pytest.mark.parametrize("family", ["gemma 4", SHARING])
def test_capacity_counts_the_bytes_that_caches_take(family: str, kv: str, tmp_path: Path) -> None:
    model = tiny_dense(family)
    model.save_pretrained(tmp_path / "tiny")
    save_tokenizer(tmp_path / "tiny")
    files = resolve(str(tmp_path / "tiny"), tmp_path / "cache")
    target = KernelTarget(Network(WeightReader(files), files.config), 128, kv=kv)
    sized = SizedTarget(files.config, "int8", kv=kv)
    assert sized.new_cache().most_nbytes(100) == target.new_cache().most_nbytes(100)
    cache = target.new_cache()
    target.forward(cache, TEXT)
    own = 3 if family == SHARING else 4  # layers with keys and values of their own
    assert cache.lsa_input(0, 50).shape == (50, own, kv_width(files.config))
    assert cache.nbytes == sized.new_cache().most_nbytes(50)


@needs_kernels
@pytest.mark.parametrize("family", [SHARING, HYBRID])
def test_the_text_part_of_a_model_that_sees_is_served(family: str, tmp_path: Path) -> None:
    model, folder = tiny_dense(family), tmp_path / "tiny"
    model.save_pretrained(folder)
    save_tokenizer(folder)
    plain = resolve(str(folder), tmp_path / "cache")
    expected = KernelTarget(Network(WeightReader(plain), plain.config), 128)
    text = json.loads((folder / "config.json").read_text("utf-8"))
    whole = {
        "model_type": text["model_type"].removesuffix("_text"), "tie_word_embeddings": text["tie_word_embeddings"],
        "eos_token_id": [1, 50], "text_config": text, "vision_config": {"hidden_size": 8},
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(whole), "utf-8")
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    renamed["model.vision_tower.encoder.layers.0.mlp.up_proj.weight"] = np.zeros((8, 8), np.float32)
    renamed["model.embed_vision.embedding_projection.weight"] = np.zeros((8, 8), np.float32)
    if family == SHARING:
        renamed["model.language_model.layers.4.self_attn.k_proj.weight"] = np.zeros((64, 64), np.float32)  # not read
    else:
        renamed |= {name: tensors[name] for name in ("lm_head.weight",)}
        renamed["mtp.fc.weight"] = np.zeros((64, 128), np.float32)  # of multi-token prediction
    save_file(renamed, folder / "model.safetensors")
    files = resolve(str(folder), tmp_path / "cache")
    reader = WeightReader(files)
    assert sorted(reader.names()) == sorted(WeightReader(plain).names())
    assert files.config["eos_token_id"] == [1, 50]
    got = KernelTarget(Network(reader, files.config), 128)
    ours, theirs = (target.forward(target.new_cache(), TEXT).logits for target in (got, expected))
    assert ours.tobytes() == theirs.tobytes()
    assert LAYER_EMBEDDINGS not in {place.name for place in plan_places(reader)}
    assert LAYER_EMBEDDINGS not in layer_places(files)

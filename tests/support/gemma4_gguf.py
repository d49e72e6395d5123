"""Writes a Gemma 4 of transformers as a GGUF file, as llama.cpp's converter does: names, keys, factors of its angles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel

from tests.support.tiny_models import Floats

_OUTSIDE = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj",
    "model.per_layer_projection_norm": "per_layer_proj_norm",
}
_MODULES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "layer_scalar": "layer_output_scale.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
}
_END = "<turn|>"


def write_gemma4_gguf(
    model: PreTrainedModel,
    path: Path,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    **changes: Any,
) -> Path:
    """The model with a vocabulary of made-up words.

    Args:
        kind: of matrices.
        changes: to the keys of the header that begin with its architecture; None: it does not say so.
    """
    config = model.config.to_dict()
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_name("tiny")
    for key, value in (_keys(config) | changes).items():
        if value is not None:
            _add(writer, f"gemma4.{key}", value)
    _write_vocabulary(writer, config["vocab_size"])
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        values: Floats = tensor.detach().float().numpy()
        renamed = _renamed(name)
        if values.ndim > 1 and "ffn_gate_inp" not in renamed:
            writer.add_tensor(renamed, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            writer.add_tensor(renamed, values)
    writer.add_tensor("rope_freqs.weight", _factors(config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _renamed(name: str) -> str:
    if name.startswith("model.layers."):
        layer, module = name.removeprefix("model.layers.").split(".", 1)
        return f"blk.{layer}.{_MODULES[module]}"
    module, kind = name.rsplit(".", 1)
    return f"{_OUTSIDE[module]}.{kind}"


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _keys(config: dict[str, Any]) -> dict[str, Any]:
    count, shared, has_experts = (
        config["num_hidden_layers"],
        config["num_kv_shared_layers"],
        config.get("enable_moe_block"),
    )
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    full = config["per_layer_config"][str(kinds.index(False))]
    inner, numbers = config["intermediate_size"], config["num_key_value_heads"]
    if config["use_double_wide_mlp"]:
        inner = [inner] * (count - shared) + [2 * inner] * shared
    if "num_key_value_heads" in full:
        numbers = [numbers if slides else full["num_key_value_heads"] for slides in kinds]
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": count,
        "feed_forward_length": inner,
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": numbers,
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": full["head_dim"],
        "attention.value_length": full["head_dim"],
        "attention.key_length_swa": config["head_dim"],
        "attention.value_length_swa": config["head_dim"],
        "attention.sliding_window": config["sliding_window"],
        "attention.sliding_window_pattern": kinds,
        "attention.shared_kv_layers": shared,
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input", 0),
        "final_logit_softcapping": config["final_logit_softcapping"],
        "rope.freq_base": float(config["rope_parameters"]["full_attention"]["rope_theta"]),
        "rope.freq_base_swa": float(config["rope_parameters"]["sliding_attention"]["rope_theta"]),
        "rope.dimension_count": full["head_dim"],
        "rope.dimension_count_swa": config["head_dim"],
        "expert_count": config["num_experts"] if has_experts else None,
        "expert_used_count": config["top_k_experts"] if has_experts else None,
        "expert_feed_forward_length": config["moe_intermediate_size"] if has_experts else None,
    }


def _factors(config: dict[str, Any]) -> Floats:
    """1 for the pairs of a head that are rotated, and for the others so much that they stay."""
    full = next(own for own in config["per_layer_config"].values())
    pairs = full["head_dim"] // 2
    turning = int(pairs * config["rope_parameters"]["full_attention"]["partial_rotary_factor"])
    return np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)


def _write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", _END]
    letters = [chr(ord("a") + index) for index in range(26)] + ["\u2581", "\n", "ab", "\u2581ab", "\n\n"]
    words = [f"w{index}" for index in range(size - len(special) - len(letters))]
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([*special, *letters, *words])
    writer.add_token_scores([-float(index) for index in range(size)])
    writer.add_token_types([3] * len(special) + [1] * (size - len(special)))
    writer.add_token_merges(["a b", "\u2581 ab", "\n \n"])
    for name, token in (("pad", 0), ("eos", 1), ("bos", 2), ("unk", 3)):
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)

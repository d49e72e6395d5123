"""Writes a mixture of transformers as a GGUF file, as llama.cpp's converter does: fused experts, names, keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from transformers import PreTrainedModel

from tests.support.mixtures import weights_of
from tests.support.tiny_models import Floats

ARCHITECTURES = {"qwen3_moe": "qwen3moe", "mixtral": "llama", "olmoe": "olmoe", "gpt_oss": "gpt-oss"}
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MODULES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate": "ffn_gate_inp",
}  # fmt: skip
_KIND = gguf.GGMLQuantizationType.F32


def write_mixture_gguf(
    model: PreTrainedModel,
    path: Path,
    kind: gguf.GGMLQuantizationType = _KIND,
    **changes: Any,
) -> Path:
    """The model with a vocabulary of made-up words.

    Args:
        kind: of the experts.
        changes: to what the header says, by the names in `_sizes`; None: it does not say so. A name of a tensor: that
            tensor instead, or none.
    """
    config = model.config.to_dict()
    architecture = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_sizes(config) | changes).items():
        if key.startswith("blk.") or value is None:
            continue
        add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
        (writer.add_string if isinstance(value, str) else add)(f"{architecture}.{key}", value)
    words = ["<unk>", "<s>", "</s>"] + [f"w{index}" for index in range(config["vocab_size"] - 3)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3] + [1] * (len(words) - 3))
    writer.add_token_merges([])
    writer.add_eos_token_id(2)
    tensors = _tensors(model, config)
    for name, values in {**tensors, **changes}.items():
        if not name.endswith(("weight", "bias")) or changes.get(name, values) is None:
            continue
        values = np.ascontiguousarray(changes.get(name, values), np.float32)
        if is_expert(name) and kind != _KIND:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sizes(config: dict[str, Any]) -> dict[str, int | float | str | None]:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rope = config["rope_parameters"]
    sizes: dict[str, int | float | str | None] = {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": head_dim,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(rope["rope_theta"]),
        "expert_count": config.get("num_experts") or config["num_local_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_feed_forward_length": config.get("moe_intermediate_size"),
        "attention.clamp_kqv": config.get("clip_qkv"),
    }
    if config["model_type"] == "gpt_oss":
        sizes |= {
            "expert_feed_forward_length": config["intermediate_size"],
            "attention.sliding_window": config["sliding_window"],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    return sizes


def _tensors(model: PreTrainedModel, config: dict[str, Any]) -> dict[str, Floats]:
    found: dict[str, Floats] = {}
    family, tensors = config["model_type"], weights_of(model).tensors
    modules = _MODULES | ({"post_attention_layernorm": "post_attention_norm"} if family == "gpt_oss" else {})
    for name, values in tensors.items():
        if name in _OUTSIDE:
            found[_OUTSIDE[name]] = values
            continue
        layer, rest = name.removeprefix("model.layers.").split(".", 1)
        if rest == "self_attn.sinks":
            found[f"blk.{layer}.attn_sinks.weight"] = values
            continue
        module, kind = rest.rsplit(".", 1)
        if ".experts." in rest:
            stem = module.rsplit(".", 1)[1].removesuffix("_proj")
            if ".experts.0." in rest:
                count = sum(
                    f".{stem}_proj.{kind}" in each and each.startswith(f"model.layers.{layer}.") for each in tensors
                )
                own = [tensors[name.replace(".experts.0.", f".experts.{number}.")] for number in range(count)]
                found[f"blk.{layer}.ffn_{stem}_exps.{kind}"] = np.stack(own)
            continue
        if family == "mixtral" and module.endswith(("q_proj", "k_proj")):
            heads = config["num_attention_heads" if "q_proj" in module else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        found[f"blk.{layer}.{modules[module]}.{kind}"] = values
    return found


def is_expert(name: str) -> bool:
    """Whether GGUF's tensor `name` holds matrices of experts."""
    return "_exps.weight" in name

"""Writes a model of transformers as a GGUF file, as llama.cpp's converter does: names, keys, order of rows, offsets."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from transformers import PreTrainedModel

from tests.support.gemma4_gguf import write_gemma4_gguf

Floats = npt.NDArray[np.float32]
_ARCHITECTURES = {
    "mistral": "llama", "ministral": "llama", "ministral3": "mistral3", "gemma3_text": "gemma3", "olmo3": "olmo2",
}  # fmt: skip
_PAIRED = ("llama", "mistral3", "smollm3", "granite")
_OUTSIDE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_AFTER = {"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_SCALES = {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}


def write_dense_gguf(
    model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
) -> Path:
    """The model with a vocabulary of single letters.

    Args:
        kind: of matrices.
    """
    config = model.config.to_dict()
    family = config["model_type"]
    if family.startswith("gemma4"):
        return write_gemma4_gguf(model, path, kind)
    architecture = _ARCHITECTURES.get(family, family)
    writer = gguf.GGUFWriter(path, architecture)
    _write_sizes(writer, config, architecture)
    _write_rope(writer, config, architecture)
    _write_vocabulary(writer, config["vocab_size"])
    norms = {"post_attention_layernorm": "ffn_norm"}
    if "gemma" in family or "olmo" in family:
        norms = {"post_attention_layernorm": "post_attention_norm", **_AFTER}
    tensors = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    for name, values in tensors.items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        renamed = _OUTSIDE.get(name) or _layer_name(name, _MODULES | norms)
        if architecture in _PAIRED and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if "gemma" in family and name.endswith("norm.weight"):
            values = values + 1
        if values.ndim == 2:
            writer.add_tensor(renamed, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
        else:
            writer.add_tensor(renamed, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _layer_name(name: str, modules: dict[str, str]) -> str:
    layer, module = name.removeprefix("model.layers.").split(".", 1)
    module, kind = module.rsplit(".", 1)
    return f"blk.{layer}.{modules[module]}.{kind}"


def _write_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if architecture not in ("phi3", "granite", "olmo2"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if architecture in ("gemma2", "gemma3", "phi3") or config["model_type"] == "olmo3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if config["model_type"] == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    for key, name in _SCALES.items():
        if key in config and architecture == "granite":
            writer.add_float32(f"granite.{name}", config[key])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _write_rope(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    parameters = config["rope_parameters"]
    own = parameters.get("full_attention", parameters)
    kind = own.get("rope_type", "default")
    share = own.get("partial_rotary_factor") or 1.0
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(share * head_dim))
    writer.add_rope_freq_base(own["rope_theta"])
    if architecture == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", parameters["sliding_attention"]["rope_theta"])
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(own["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(own["factor"])
        writer.add_rope_scaling_orig_ctx_len(own["original_max_position_embeddings"])
        if own.get("beta_fast"):
            writer.add_rope_scaling_yarn_beta_fast(own["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(own["beta_slow"])
        if own.get("attention_factor"):
            writer.add_rope_scaling_yarn_attn_factor(own["attention_factor"])
        if architecture == "mistral3":
            writer.add_float32("mistral3.rope.scaling.yarn_log_multiplier", own["mscale_all_dim"])
            writer.add_float32("mistral3.attention.temperature_scale", own["llama_4_scaling_beta"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(own, head_dim))
    if architecture == "phi3":
        original = own.get("original_max_position_embeddings") or config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        if kind == "longrope":
            scale = config["max_position_embeddings"] / original
            attention = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
            writer.add_rope_scaling_attn_factors(attention)
            writer.add_tensor("rope_factors_long.weight", np.array(own["long_factor"], np.float32))
            writer.add_tensor("rope_factors_short.weight", np.array(own["short_factor"], np.float32))


def llama3_factors(parameters: dict[str, Any], head_dim: int) -> Floats:
    """What llama.cpp divides a Llama 3's frequencies by."""
    frequencies = 1.0 / parameters["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    factors = []
    for wavelength in 2 * math.pi / frequencies:
        smooth = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        factors.append(1.0 if wavelength < original / high else factor if wavelength > original / low else between)
    return np.array(factors, np.float32)


def _write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """SentencePiece: three special tokens, all bytes if there is room, and made-up words."""
    room = size - 3 >= 256
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if room else []
    words = [f"w{index}" for index in range(size - 3 - len(byte_tokens))]
    tokens = ["<unk>", "<s>", "</s>", *byte_tokens, *words]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(size)])
    writer.add_token_types([2, 3, 3] + [6] * len(byte_tokens) + [1] * len(words))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)

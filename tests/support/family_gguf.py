"""Writes a model of transformers as a GGUF file, as llama.cpp's converter does; names of tensors are the library's own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from moa_shared.models.storage.tensors import known_name
from transformers import PreTrainedModel

from tests.support.families import weights_of
from tests.support.tiny_models import Floats

_ARCHITECTURES = {
    "mistral": "llama", "ministral": "llama", "ministral3": "mistral3", "gemma3_text": "gemma3", "olmo3": "olmo2",
    "gemma4_text": "gemma4", "gemma4_unified_text": "gemma4", "qwen3_moe": "qwen3moe", "mixtral": "llama", "gpt_oss": "gpt-oss",
    "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe", "qwen3_next": "qwen3next",
}  # fmt: skip
_PAIRED = ("llama", "mistral3", "smollm3", "granite")
_UNKNOWN = {"q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "lm_head": "output"}  # to some of its architectures
_UNKNOWN |= {"pre_projection": "nextn.pre_projection", "post_projection": "nextn.post_projection"}  # and of assistants
_UNKNOWN |= {"centroids": "masked_embd_centroids", "token_ordering": "masked_embd_ordering"}
_GEMMA_4 = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
_OF_DELTA_NETS = {
    "in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "in_proj_a": "ssm_alpha", "in_proj_b": "ssm_beta", "in_proj_ba": "ssm_ba",
    "conv1d": "ssm_conv1d", "norm": "ssm_norm", "out_proj": "ssm_out",
}  # fmt: skip
_F32 = gguf.GGMLQuantizationType.F32
Keys = dict[str, Any]


def write_family_gguf(
    model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType = _F32, **changes: Any
) -> Path:
    """The model with a vocabulary of made-up words.

    `kind`: of matrices; of a mixture's experts. `changes`: to the keys of the header that begin with its architecture;
    None: it does not say so. A name of a tensor: that tensor instead, or none.
    """
    config = model.config.to_dict()
    architecture = _ARCHITECTURES.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    keys = (_gemma4_keys(config) if architecture == "gemma4" else _keys(config, architecture)) | changes
    for key, value in keys.items():
        if value is not None and not isinstance(value, np.ndarray):
            _add(writer, f"{architecture}.{key}", value)
    (_write_gemma4_vocabulary if architecture == "gemma4" else _write_vocabulary)(writer, config["vocab_size"])
    for name, values in (_tensors(model, config, architecture) | changes).items():
        if not name.endswith(("weight", "bias", "scale", "ssm_a")) or values is None:
            continue
        values = np.ascontiguousarray(values, np.float32)
        is_packed = "_exps.weight" in name if "exps" in "".join(changes) or _has_experts(config) else values.ndim > 1
        if is_packed and "ffn_gate_inp" not in name and "conv1d" not in name and kind != _F32:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_assistant_gguf(model: PreTrainedModel, path: Path, kind: gguf.GGMLQuantizationType = _F32) -> None:
    """An assistant of a Gemma 4; `kind`: of matrices."""
    config, architecture = model.config.text_config.to_dict(), "gemma4-assistant"
    writer, keys = gguf.GGUFWriter(path, architecture), _gemma4_keys(config)
    keys |= {"nextn_predict_layers": keys["block_count"], "centroid_top_k": model.config.centroid_intermediate_top_k}
    for key, value in keys.items():
        if value is not None:
            _add(writer, f"{architecture}.{key}", value)
    _write_gemma4_vocabulary(writer, config["vocab_size"])
    for name, values in _tensors(model, config, "gemma4").items():
        if "ordering" in name:
            writer.add_tensor(name.removesuffix(".weight"), values.astype(np.int32))
        elif values.ndim > 1 and kind != _F32:
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _has_experts(config: Keys) -> bool:
    return bool(config.get("num_experts") or config.get("num_local_experts")) and "gemma4" not in config["model_type"]


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = {list: writer.add_array, str: writer.add_string, float: writer.add_float32}
    kinds.get(type(value), writer.add_uint32)(key, value)


_SIZES = {
    "context_length": "max_position_embeddings", "embedding_length": "hidden_size", "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
}  # fmt: skip


def _sizes(config: Keys, rope: Keys) -> Keys:
    """What the header says of any model."""
    own = {
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope["rope_theta"]),
    }
    return {key: config[name] for key, name in _SIZES.items()} | own


def _keys(config: Keys, architecture: str) -> Keys:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    family, rope = config["model_type"], config["rope_parameters"]
    own = rope.get("full_attention", rope)
    keys: Keys = _sizes(config, own) | {
        "attention.clamp_kqv": config.get("clip_qkv"),
        "rope.dimension_count": int((own.get("partial_rotary_factor") or 1.0) * head_dim),
        "vocab_size": config["vocab_size"],
    }
    if architecture not in ("phi3", "granite", "olmo2"):
        keys |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    if architecture in ("gemma2", "gemma3", "phi3", "gpt-oss") or family == "olmo3":
        keys["attention.sliding_window"] = config.get("sliding_window") or 0
    if family == "olmo3":
        keys["attention.sliding_window_pattern"] = [each == "sliding_attention" for each in config["layer_types"]]
    if _has_experts(config):
        width = config["intermediate_size"] if family == "gpt_oss" else config.get("moe_intermediate_size")
        keys |= {
            "expert_count": config.get("num_experts") or config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": width,
            "expert_shared_feed_forward_length": config.get("shared_expert_intermediate_size"),
        }
    if "linear_attention" in (config.get("layer_types") or ()):
        keys |= _delta_net_keys(config)
    if architecture == "granite":
        scales = {"attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
                  "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling"}  # fmt: skip
        keys |= {key: float(config[name]) for key, name in scales.items()}
    if architecture == "gemma2":
        keys |= {name: config[name] for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    if architecture == "gemma3":
        keys["rope.freq_base_swa"] = float(rope["sliding_attention"]["rope_theta"])
    if architecture == "mistral3":
        keys["rope.scaling.yarn_log_multiplier"] = float(own["mscale_all_dim"])
        keys["attention.temperature_scale"] = float(own["llama_4_scaling_beta"])
    return keys | _scaling(config, own, architecture)


def _delta_net_keys(config: Keys) -> Keys:
    kinds = [kind == "linear_attention" for kind in config["layer_types"]]
    is_usual = kinds == [layer % 4 > 0 for layer in range(1, len(kinds) + 1)]
    return {
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": config["linear_num_value_heads"],
        "ssm.inner_size": config["linear_num_value_heads"] * config["linear_value_head_dim"],
        "full_attention_interval": 4 if is_usual else None,
        "attention.recurrent_layers": None if is_usual else kinds,
        "rope.dimension_sections": [11, 11, 10, 0],
    }


def _scaling(config: Keys, own: Keys, architecture: str) -> Keys:
    kind = own.get("rope_type", "default")
    original: Any = own.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    keys: Keys = {"rope.scaling.type": kind if kind in ("linear", "yarn") else None}
    if kind in ("linear", "yarn"):
        keys["rope.scaling.factor"] = own["factor"]
    if kind == "yarn":
        keys["rope.scaling.original_context_length"] = original
        if config["model_type"] != "gpt_oss":
            names = {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attn_factor"}
            keys |= {f"rope.scaling.yarn_{key}": own.get(name) for name, key in names.items()}
    if architecture == "phi3":
        keys["rope.scaling.original_context_length"] = original
        if kind == "longrope":
            scale = config["max_position_embeddings"] / original
            keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    return keys


def _gemma4_keys(config: Keys) -> Keys:
    count, shared = config["num_hidden_layers"], config["num_kv_shared_layers"]
    kinds = [kind == "sliding_attention" for kind in config["layer_types"]]
    full, rope = config["per_layer_config"][str(kinds.index(False))], config["rope_parameters"]
    inner, numbers = config["intermediate_size"], config["num_key_value_heads"]
    if config["use_double_wide_mlp"]:
        inner = [inner] * (count - shared) + [2 * inner] * shared
    if "num_key_value_heads" in full:
        numbers = [numbers if slides else full["num_key_value_heads"] for slides in kinds]
    keys = _sizes(config, rope["full_attention"]) | {
        "feed_forward_length": inner, "attention.head_count_kv": numbers,
        "attention.sliding_window": config["sliding_window"], "attention.sliding_window_pattern": kinds,
        "attention.shared_kv_layers": shared, "final_logit_softcapping": config["final_logit_softcapping"],
        "embedding_length_per_layer_input": config.get("hidden_size_per_layer_input", 0),
        "rope.freq_base_swa": float(rope["sliding_attention"]["rope_theta"]),
    }  # fmt: skip
    for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        keys |= {name: full["head_dim"], f"{name}_swa": config["head_dim"]}
    if config.get("enable_moe_block"):
        keys |= {"expert_count": config["num_experts"], "expert_used_count": config["top_k_experts"],
                 "expert_feed_forward_length": config["moe_intermediate_size"]}  # fmt: skip
    return keys


def _tensors(model: PreTrainedModel, config: Keys, architecture: str) -> dict[str, Floats]:
    """By their names in the file, with the order of rows and the offsets that llama.cpp has there."""
    known = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names, found = gguf.get_tensor_name_map(known, config["num_hidden_layers"]), dict[str, Floats]()
    for name, values in _own_tensors(model, config).items():
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if architecture in _PAIRED and ("q_proj" in name or "k_proj" in name):
            heads = config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]
            values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
        if "linear_attn" in name:
            found |= _of_delta_net(name, values, config, architecture)
            continue
        if architecture in ("gemma2", "gemma3") or "qwen3next" in architecture or "qwen35" in architecture:
            values = values + 1 if name.endswith("norm.weight") else values
        found[_renamed(name, names)] = values
    rope = config["rope_parameters"]
    own = rope.get("full_attention", rope)
    if own.get("rope_type") == "llama3":
        head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        found["rope_freqs.weight"] = _llama3_factors(own, head_dim)
    if own.get("rope_type") == "longrope":
        found |= {f"rope_factors_{which}.weight": np.array(own[f"{which}_factor"]) for which in ("long", "short")}
    if architecture == "gemma4":  # 1 for the pairs of a head that are rotated, for others so much that they stay
        pairs = next(iter(config["per_layer_config"].values()))["head_dim"] // 2
        turning = int(pairs * own["partial_rotary_factor"])
        found["rope_freqs.weight"] = np.array([1.0] * turning + [1e30] * (pairs - turning), np.float32)
    return found


def _of_delta_net(name: str, values: Floats, config: Keys, architecture: str) -> dict[str, Floats]:
    """One of its tensors as the converter writes it; of Qwen3.5 with value heads by their places in groups first."""
    _, _, layer, _, part, *_ = name.split(".")
    heads, key_heads = config["linear_num_value_heads"], config["linear_num_key_heads"]
    keys, block = config["linear_key_head_dim"], f"blk.{layer}."
    if part == "in_proj_qkvz":  # apart for each key head: its query, its key, values and gates
        own = config["linear_value_head_dim"] * heads // key_heads
        apart = values.reshape(key_heads, -1, values.shape[1])
        parts = np.split(apart, [keys, 2 * keys, 2 * keys + own], axis=1)
        *qkv, gate = (each.reshape(-1, values.shape[1]) for each in parts)
        return {f"{block}attn_qkv.weight": np.concatenate(qkv), f"{block}attn_gate.weight": gate}
    if part == "conv1d":
        values = values[:, 0]

    def by_place(own: Floats) -> Floats:
        return own.reshape(key_heads, heads // key_heads, -1, *own.shape[1:]).swapaxes(0, 1).reshape(own.shape)

    if architecture != "qwen3next" and part != "norm":
        if part in ("in_proj_qkv", "conv1d"):
            first = 2 * key_heads * keys
            values = np.concatenate((values[:first], by_place(values[first:])))
        else:
            values = by_place(values.T).T if part == "out_proj" else by_place(values)
    if part == "A_log":
        return {f"{block}ssm_a": -np.exp(values)}
    return {f"{block}{'ssm_dt.bias' if part == 'dt_bias' else _OF_DELTA_NETS[part] + '.weight'}": values}


def _own_tensors(model: PreTrainedModel, config: Keys) -> dict[str, Floats]:
    """By transformers' names, with the experts of a mixture in one tensor each."""
    if not _has_experts(config):
        return {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    apart = weights_of(model).tensors
    whole = {known_name(name): tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
    found = {name: values for name, values in whole.items() if ".experts." not in name}
    for name in apart:
        if ".experts.0." in name:
            count = config.get("num_experts") or config["num_local_experts"]
            own = [apart[name.replace(".experts.0.", f".experts.{number}.")] for number in range(count)]
            found[name.replace(".experts.0.", ".experts.")] = np.stack(own)
    return found


def _renamed(name: str, names: gguf.TensorNameMap) -> str:
    for ending, renamed in _GEMMA_4.items():
        if name.endswith(ending):
            return f"blk.{name.split('.')[2]}.{renamed}"
    stem, _, kind = name.rpartition(".")
    if kind not in ("weight", "bias"):
        stem, kind = name, "weight"
    if (known := names.get_name(stem)) is None:
        last = stem.rpartition(".")[2]
        known = f"blk.{stem.split('.')[2]}.{_UNKNOWN[last]}" if "layers" in stem else _UNKNOWN[last]
    return f"{known}.{kind}"


def _llama3_factors(parameters: Keys, head_dim: int) -> Floats:
    """What llama.cpp divides a Llama 3's frequencies by."""
    frequencies = 1.0 / parameters["rope_theta"] ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    original, factor = parameters["original_max_position_embeddings"], parameters["factor"]
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    wavelengths = 2 * math.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    factors: Floats = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    return factors


def _write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """SentencePiece: three special tokens, all bytes if there is room, and made-up words."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)] if size - 3 >= 256 else []
    words = [f"w{index}" for index in range(size - 3 - len(byte_tokens))]
    writer.add_tokenizer_pre("default")
    kinds = [2, 3, 3] + [6] * len(byte_tokens) + [1] * len(words)
    special = {"bos": 1, "eos": 2, "unk": 0, "pad": 0}
    _write_tokens(writer, "llama", ["<unk>", "<s>", "</s>", *byte_tokens, *words], kinds, special)


def _write_gemma4_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<turn|>"]
    letters = [chr(ord("a") + index) for index in range(26)] + ["\u2581", "\n", "ab", "\u2581ab", "\n\n"]
    words = [f"w{index}" for index in range(size - len(special) - len(letters))]
    kinds = [3] * len(special) + [1] * (size - len(special))
    _write_tokens(writer, "gemma4", [*special, *letters, *words], kinds, {"pad": 0, "eos": 1, "bos": 2, "unk": 3})
    writer.add_token_merges(["a b", "\u2581 ab", "\n \n"])
    writer.add_add_space_prefix(False)
    writer.add_add_bos_token(True)


def _write_tokens(
    writer: gguf.GGUFWriter, model: str, tokens: list[str], kinds: list[int], special: dict[str, int]
) -> None:
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(index) for index in range(len(tokens))])
    writer.add_token_types(kinds)
    for name, token in special.items():
        getattr(writer, f"add_{name}_token_id")(token)

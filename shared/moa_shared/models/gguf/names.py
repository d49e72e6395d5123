"""What GGUF calls the tensors of the families that are served, and how it stores them.

Pure, over the families' descriptions. llama.cpp's converter pairs the rows of some families' query and key projections
for its own rotary positions: within a head, row 2i is transformers' row i and row 2i + 1 its row i + head_dim / 2.
It also adds 1 to the weights of Gemma's norms.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.models.gguf.experts import EXPERTS, expert_module, expert_shapes
from moa_shared.models.gguf.gemma4 import FAMILY as GEMMA_4
from moa_shared.models.gguf.gemma4 import gemma4_name, gemma4_shapes
from moa_shared.models.network.description import FAMILIES

_PAIRED = frozenset({"llama", "mistral", "ministral3", "mixtral", "smollm3", "granite"})
_HEAD_NORMS = frozenset({"qwen3", "qwen3_moe", "gemma3_text"})
_WIDE_HEAD_NORMS = frozenset({"olmo2", "olmo3", "olmoe"})  # over all heads side by side
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_SPLIT = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_BEHIND = {"attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
_QUERY_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+(?:\.\d+)?)\.(weight|bias)")


def hugging_face_name(name: str, family: str = "llama") -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a tensor that the family lacks.

    Args:
        family: transformers' name of it.
    """
    if family == GEMMA_4:
        return gemma4_name(name)
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, stem, kind = match.groups()
    if layer is None:
        return f"{_OUTSIDE[stem]}.{kind}" if stem in _OUTSIDE and kind == "weight" else None
    module = _vectors(family).get(stem) if kind == "weight" else None
    module = module or _matrices(family).get(stem)
    if module is None and kind == "weight" and FAMILIES[family].mixture is not None:
        module = expert_module(stem)
    return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"


def known_shapes(
    config: Mapping[str, Any], *, apart: bool = False
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """The shapes of all tensors that the model may have, by GGUF's names.

    Args:
        apart: each expert has tensors of its own.

    Returns:
        those without which it cannot be computed, and others.
    """
    family = str(config["model_type"])
    if family == GEMMA_4:
        return gemma4_shapes(config)
    hidden, mlp, head_dim = int(config["hidden_size"]), int(config["intermediate_size"]), int(config["head_dim"])
    queries, keys = int(config["num_attention_heads"]) * head_dim, int(config["num_key_value_heads"]) * head_dim
    fused = FAMILIES[family].fused
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, hidden),
        "attn_k": (keys, hidden),
        "attn_v": (keys, hidden),
        "attn_qkv": (queries + 2 * keys, hidden),
        "attn_output": (hidden, queries),
        "ffn_gate": (mlp, hidden),
        "ffn_up": (2 * mlp if fused else mlp, hidden),
        "ffn_down": (hidden, mlp),
        "attn_q_norm": (queries if family in _WIDE_HEAD_NORMS else head_dim,),
        "attn_k_norm": (keys if family in _WIDE_HEAD_NORMS else head_dim,),
        "attn_sinks": (int(config["num_attention_heads"]),),
    }
    matrices: Collection[str] = _matrices(family)
    if FAMILIES[family].mixture is not None:
        experts = expert_shapes(config, apart=apart)
        shapes |= experts
        matrices = [*(stem for stem in matrices if stem not in EXPERTS), *experts]
    vocabulary = int(config["vocab_size"]), hidden
    required: dict[str, tuple[int, ...]] = {"token_embd.weight": vocabulary, "output_norm.weight": (hidden,)}
    others: dict[str, tuple[int, ...]] = {"output.weight": vocabulary}
    vectors = _vectors(family)
    for layer in range(int(config["num_hidden_layers"])):
        for stem in (*matrices, *vectors):
            required[f"blk.{layer}.{stem}.weight"] = shapes.get(stem, (hidden,))
        for stem in matrices:
            (required if _needs_bias(family, stem) else others)[f"blk.{layer}.{stem}.bias"] = shapes[stem][:-1]
    return required, others


@cache
def _matrices(family: str) -> Mapping[str, str]:
    found = (_FUSED if FAMILIES[family].fused else _SPLIT) | _BEHIND
    if FAMILIES[family].mixture is None:
        return found
    return {stem: module for stem, module in found.items() if not stem.startswith("ffn_")} | EXPERTS


def _needs_bias(family: str, stem: str) -> bool:
    return family == "gpt_oss" or (family == "qwen2" and stem in ("attn_q", "attn_k", "attn_v"))


@cache
def _vectors(family: str) -> Mapping[str, str]:
    norms = FAMILIES[family].norms
    modules = {
        "attn_norm": norms.attention,
        "post_attention_norm": norms.attention_out,
        "ffn_norm": norms.mlp,
        "post_ffw_norm": norms.mlp_out,
    }
    found = {stem: module for stem, module in modules.items() if module is not None}
    if family == "gpt_oss":  # whose norm before the experts has another name
        found["post_attention_norm"] = found.pop("ffn_norm")
        found["attn_sinks"] = "self_attn.sinks"
    return found | (_QUERY_NORMS if family in _HEAD_NORMS | _WIDE_HEAD_NORMS else {})


def added_offset(name: str, family: str) -> float:
    """What GGUF has added to the numbers of tensor `name`."""
    return FAMILIES[family].norm_offset if name.endswith("norm.weight") else 0.0


def paired_heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads of paired rows GGUF's tensor `name` has; 0 where its rows are in transformers' order."""
    if config["model_type"] not in _PAIRED:
        return 0
    heads = int(config["num_attention_heads"])
    if ".attn_q." in name:
        return heads
    return int(config.get("num_key_value_heads") or heads) if ".attn_k." in name else 0


def unpair_rows(rows: npt.NDArray[Any], heads: int) -> npt.NDArray[Any]:
    """[outputs, ...] with paired rows -> the same in transformers' order, a copy."""
    paired = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)


def paired_places(outputs: npt.NDArray[np.int64], count: int, heads: int) -> npt.NDArray[np.int64]:
    """Which rows of a matrix of `count` paired rows are these outputs, in transformers' order."""
    size = count // heads
    within = outputs % size
    places: npt.NDArray[np.int64] = outputs - within + within % (size // 2) * 2 + within // (size // 2)
    return places

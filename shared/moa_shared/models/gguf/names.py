"""What GGUF calls the tensors of the families that are served, and how it orders their rows.

Pure. llama.cpp's converter pairs the rows of a Llama's query and key projections for its own rotary positions: within
a head, row 2i is transformers' row i and row 2i + 1 its row i + head_dim / 2. Qwen's stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from moa_shared.models.gguf.experts import MODULES, mixture_shapes
from moa_shared.models.network.description import FAMILIES

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


def hugging_face_name(name: str, family: str = "llama") -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a tensor that the family lacks.

    Args:
        family: transformers' name of it.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, stem, kind = match.groups()
    if layer is None:
        return f"{_OUTSIDE[stem]}.{kind}" if stem in _OUTSIDE else None
    module = (_LAYER | MODULES if FAMILIES[family].mixture is not None else _LAYER).get(stem)
    return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"


def required_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The tensors without which the model cannot be computed, by GGUF's names, and their shapes."""
    hidden, mlp, head_dim = int(config["hidden_size"]), int(config["intermediate_size"]), int(config["head_dim"])
    queries, keys = int(config["num_attention_heads"]) * head_dim, int(config["num_key_value_heads"]) * head_dim
    inside: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (keys, hidden),
        "attn_v.weight": (keys, hidden),
        "attn_output.weight": (hidden, queries),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (mlp, hidden),
        "ffn_up.weight": (mlp, hidden),
        "ffn_down.weight": (hidden, mlp),
    }
    if config["model_type"] == "qwen2":
        inside |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config["model_type"] == "qwen3":
        inside |= {"attn_q_norm.weight": (head_dim,), "attn_k_norm.weight": (head_dim,)}
    if FAMILIES[config["model_type"]].mixture is not None:
        inside = {name: shape for name, shape in inside.items() if not name.startswith("ffn_") or "norm" in name}
        inside |= mixture_shapes(config)
    if config["model_type"] == "gpt_oss":
        del inside["ffn_norm.weight"]
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (int(config["vocab_size"]), hidden),
        "output_norm.weight": (hidden,),
    }
    for layer in range(int(config["num_hidden_layers"])):
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in inside.items()}
    return shapes


def paired_heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads of paired rows GGUF's tensor `name` has; 0 where its rows are in transformers' order."""
    if config["model_type"] not in ("llama", "mixtral"):
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

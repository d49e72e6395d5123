"""What GGUF calls the tensors of the families that are served, and how it stores them.

Pure, over the rows of families.py. llama.cpp's converter pairs the rows of some families' query and key projections for
its own rotary positions: within a head, row 2i is transformers' row i and row 2i + 1 its row i + head_dim / 2. It also
adds 1 to the weights of Gemma's norms.
"""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from moa_shared.models.families import FAMILIES, Gguf
from moa_shared.models.network.layer_sizes import LayerSizes, is_on, layer_kinds, sizes_of, with_defaults

Shapes = dict[str, tuple[int, ...]]
_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
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
_EXPERTS = {  # a layer's router and its experts
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?((\w+)\.(weight|bias|scale))")


def hugging_face_name(name: str, family: str = "llama") -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a tensor that the family lacks."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, whole, stem, kind = match.groups()
    other = _gguf(family).renamed.get(whole)
    if layer is None:
        return _OUTSIDE.get(whole) or (other if other and other.startswith("model.") else None)
    if other is not None:
        return f"model.layers.{int(layer)}.{other}" if other and not other.startswith("model.") else None
    is_known = kind == "weight" or (kind == "bias" and stem not in _norms(family))
    module = _modules(family).get(stem) if is_known else None
    return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"


def known_shapes(config: Mapping[str, Any]) -> tuple[Shapes, Shapes]:
    """The shapes of all tensors that a model needs, and of others that it may have, by GGUF's names."""
    name = str(config["model_type"])
    family, gguf = FAMILIES[name], _gguf(name)
    config = with_defaults(config, family)
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    experts: Shapes = {}
    if family.mixture is not None and is_on(config, family.mixture):
        count, inner = int(config[family.mixture.count]), int(config[family.mixture.inner])
        experts = {"ffn_gate_inp": (count, hidden), "ffn_down_exps": (count, hidden, inner)}
        experts |= dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), (count, inner, hidden))
    vocabulary = int(config["vocab_size"]), hidden
    required: Shapes = {"token_embd.weight": vocabulary, "output_norm.weight": (hidden,)}
    others: Shapes = {"output.weight": vocabulary}
    if family.layers_differ and (width := int(config["hidden_size_per_layer_input"])):
        rows, all_widths = config.get("vocab_size_per_layer_input", vocabulary[0]), width * config["num_hidden_layers"]
        required["per_layer_token_embd.weight"] = (rows, all_widths)
        required["per_layer_model_proj.weight"] = (all_widths, hidden)
        required["per_layer_proj_norm.weight"] = (width,)
    stems = [stem for stem in _modules(name) if stem not in _EXPERTS]
    for layer, sizes in enumerate(sizes_of(config, family, layer_kinds(config, family))):
        dim, inner = sizes.heads.dim, sizes.inner
        queries, keys, wide = heads * dim, sizes.heads.number * dim, gguf.head_norms == "all"
        shapes: Shapes = {
            "attn_q": (queries, hidden),
            "attn_k": (keys, hidden),
            "attn_v": (keys, hidden),
            "attn_qkv": (queries + 2 * keys, hidden),
            "attn_output": (hidden, queries),
            "ffn_gate": (inner, hidden),
            "ffn_up": (2 * inner if family.fused else inner, hidden),
            "ffn_down": (hidden, inner),
            "attn_q_norm": (queries if wide else dim,),
            "attn_k_norm": (keys if wide else dim,),
            "attn_sinks": (heads,),
        }
        own, may = {f"{stem}.weight": shapes.get(stem, (hidden,)) for stem in stems}, Shapes()
        own |= {f"{stem}.weight": shape for stem, shape in experts.items()}
        if family.layers_differ:
            own, may = _of_differing_layer(own, config, sizes)
        else:
            matrices = {stem: shapes[stem] for stem in stems if stem not in _norms(name)} | experts
            for stem, shape in matrices.items():
                (own if gguf.biased is None or stem in gguf.biased else may)[f"{stem}.bias"] = shape[:-1]
        required |= {f"blk.{layer}.{stem}": shape for stem, shape in own.items()}
        others |= {f"blk.{layer}.{stem}": shape for stem, shape in may.items()}
    return required, others


def _of_differing_layer(own: Shapes, config: Mapping[str, Any], sizes: LayerSizes) -> tuple[Shapes, Shapes]:
    hidden, width, may = int(config["hidden_size"]), int(config["hidden_size_per_layer_input"]), Shapes()
    may["layer_output_scale.weight"] = (1,)
    if sizes.keys_are_values:
        del own["attn_v.weight"]
    if sizes.reads_layer is not None:  # files have these, and nothing reads them
        may |= {f"{stem}.weight": own.pop(f"{stem}.weight") for stem in ("attn_k", "attn_v", "attn_k_norm")}
    if width:
        own |= {"inp_gate.weight": (width, hidden), "proj.weight": (hidden, width), "post_norm.weight": (hidden,)}
    if config.get("enable_moe_block"):
        count, inner, _ = own["ffn_gate_exps.weight"]
        own |= {f"{stem}.weight": (hidden,) for stem in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2")}
        own |= {"ffn_gate_inp.scale": (hidden,), "ffn_down_exps.scale": (count,)}
        may |= {name: own.pop(name) for name in ("ffn_gate_exps.weight", "ffn_up_exps.weight")}
        may["ffn_gate_up_exps.weight"] = (count, 2 * inner, hidden)
    return own, may


def _gguf(family: str) -> Gguf:
    return cast(Gguf, FAMILIES[family].gguf)  # others were refused when the header was read


@cache
def _modules(family: str) -> dict[str, str]:
    """The modules of a layer by their stems: matrices, with those of experts, and vectors."""
    row = FAMILIES[family]
    found = (_FUSED if row.fused else _SPLIT) | _BEHIND
    if row.mixture is not None:
        beside = row.mixture.beside
        found = {stem: module for stem, module in found.items() if beside or not stem.startswith("ffn_")} | _EXPERTS
    return found | _norms(family)


@cache
def _norms(family: str) -> dict[str, str]:
    norms, gguf = FAMILIES[family].norms, _gguf(family)
    modules = {
        "attn_norm": norms.attention,
        "post_attention_norm": norms.attention_out,
        "ffn_norm": norms.mlp,
        "post_ffw_norm": norms.mlp_out,
    }
    if not FAMILIES[family].layers_differ:  # whose other tensors have shapes of their own
        modules |= {name.removesuffix(".weight"): other or None for name, other in gguf.renamed.items()}
    return {stem: each for stem, each in modules.items() if each} | (_QUERY_NORMS if gguf.head_norms else {})


def added_offset(name: str, family: str) -> float:
    """What GGUF has added to the numbers of tensor `name`."""
    return FAMILIES[family].norm_offset if name.endswith("norm.weight") else 0.0


def paired_heads(name: str, config: Mapping[str, Any]) -> int:
    """How many heads of paired rows GGUF's tensor `name` has; 0 where its rows are in transformers' order."""
    if not _gguf(str(config["model_type"])).pairs_heads:
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

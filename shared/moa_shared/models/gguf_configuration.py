"""What a GGUF file says in transformers' words: names of tensors, config.json and generation_config.json.

Pure, over a header and the rows of families.py. Many files name one end of text only, or the wrong one: llama.cpp also
ends an answer at tokens that are spelled as the ends of known families, and so does this. Invariant: what is not
understood is refused.
"""

import re
from functools import cache
from typing import Any, cast

from moa_shared.models.files import GGUF_KEY, GGUF_TYPES
from moa_shared.models.network.families import FAMILIES, Gguf, gguf_family
from moa_shared.models.network.served import check_family
from moa_shared.models.storage.gguf_header import GgufHeader
from moa_shared.models.storage.gguf_keys import FACTOR_TENSORS, rope_parameters
from moa_shared.sampling.settings import LEAST_TEMPERATURE, REPEAT_LAST_N

_OUTSIDE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_MLP = ("gate", "up", "down")
_SPLIT = {f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"}
_SPLIT |= {f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up")}
_FUSED = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_BEHIND = {"attn_output": "self_attn.o_proj", "ffn_down": "mlp.down_proj"}
_EXPERTS = {"ffn_gate_inp": "mlp.gate"} | {f"ffn_{each}_exps": f"mlp.experts.{each}_proj" for each in _MLP}
_NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head_norm", "shared_head_head", "embed_tokens")  # of MTP heads
_OF_HEADS = {f"nextn.{each}": each.replace("shared_head_", "shared_head.") for each in _NEXTN}
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(((?:nextn\.)?\w+?)(?:\.(weight|bias|scale))?)")


def hugging_face_name(name: str, family: str = "llama") -> str | None:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`; None for a tensor that the family lacks."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, whole, stem, kind = match.groups()
    gguf = cast(Gguf, FAMILIES[family].gguf)  # others were refused when the header was read
    other = gguf.renamed.get(whole)
    if layer is None:
        return _OUTSIDE.get(whole) or (other if other and other.startswith("model.") else None)
    if other is not None:
        return f"model.layers.{int(layer)}.{other}" if other and not other.startswith("model.") else None
    is_known = kind == "weight" or (kind == "bias" and not stem.endswith("norm"))
    module = _modules(family).get(stem) if is_known else None
    return None if module is None else f"model.layers.{int(layer)}.{module}.{kind}"


@cache
def _modules(family: str) -> dict[str, str | None]:
    row = FAMILIES[family]
    norms, found = row.norms, (_FUSED if row.fused else _SPLIT) | _BEHIND | _OF_HEADS
    if row.mixture is not None:
        beside = row.mixture.beside
        found = {stem: module for stem, module in found.items() if beside or not stem.startswith("ffn_")} | _EXPERTS
    if row.gguf is not None and row.gguf.head_norms:
        found |= {f"attn_{each}_norm": f"self_attn.{each}_norm" for each in "qk"}
    return found | {
        "attn_norm": norms.attention,
        "post_attention_norm": norms.attention_out,
        "ffn_norm": norms.mlp,
        "post_ffw_norm": norms.mlp_out,
    }


_WHOLE = "Name a GGUF file of a whole model, or the first of its parts."


def make_config(header: GgufHeader) -> dict[str, Any]:
    """The content of config.json; ModelSourceError: what is not served, is missing, misshapen or not known."""
    name, family, gguf = gguf_family(header)
    if "token_embd.weight" not in header.tensors:
        raise header.wrong("holds no embeddings", _WHOLE)
    config = _sizes(header) | {"model_type": name}
    if (mixture := family.mixture) is not None:
        has_experts = not mixture.switch or bool(header.integer("expert_count"))
        if mixture.switch:
            config[mixture.switch] = has_experts
        if has_experts:
            config[mixture.count] = header.required("expert_count")
            config[mixture.chosen] = header.required("expert_used_count")
            inner = header.integer("expert_feed_forward_length")
            config[mixture.inner] = inner or header.required("feed_forward_length")
    config |= gguf.keys(header, config)
    if name != "phi3" and family.delta_nets is None and "partial_rotary_factor" in config["rope_parameters"]:
        raise header.unread("rotates a part of each head")
    config |= special_ids(header)
    if (pooling := GGUF_TYPES.get(header.integer("pooling_type") or 0)) is not None:
        config[GGUF_KEY] = pooling.value
    check_family(config, header.path.name)
    for tensor in sorted(header.tensors.keys() - FACTOR_TENSORS):  # what nothing is computed with
        if hugging_face_name(tensor, name) is None:
            what = f"holds {tensor}, which no {header.architecture} model that moa serves has"
            raise header.wrong(what, "Choose a model without additions to its family, in a file of 2024 or later.")
    last = f"blk.{config['num_hidden_layers'] - 1}"
    ending = "ssm_out" if f"{last}.ssm_out.weight" in header.tensors else "attn_output"
    for tensor in ("output_norm.weight", f"{last}.{ending}.weight"):
        if tensor not in header.tensors:
            raise header.wrong(f"lacks {tensor}", _WHOLE)
    tokens, shape = header.values("tokenizer.ggml.tokens"), header.tensors["token_embd.weight"].shape
    expected = len(tokens) or config["vocab_size"], config["hidden_size"]
    if shape != expected:
        raise header.wrong(f"has embeddings of the shape {list(shape)}, expected {list(expected)}")
    return dict(sorted(config.items()))


def _sizes(header: GgufHeader) -> dict[str, Any]:
    family, hidden = header.architecture, header.required("embedding_length")
    heads = header.required("attention.head_count")
    head_dim = header.integer("attention.key_length")
    if not head_dim and family != "phi3":  # which may rotate a part of a head
        head_dim = header.integer("rope.dimension_count")
    head_dim = head_dim or (hidden // heads if heads > 0 else 0)
    epsilon = header.real("attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise header.wrong("does not set the epsilon of its norms")
    return {
        "attention_bias": family != "qwen2" and "blk.0.attn_q.bias" in header.tensors,
        "dtype": "float32",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _of_first_layer(header, "feed_forward_length") or header.required("feed_forward_length"),
        "max_position_embeddings": header.required("context_length"),
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "num_attention_heads": heads,
        "num_hidden_layers": header.required("block_count") - (header.integer("nextn_predict_layers") or 0),
        "num_key_value_heads": _of_first_layer(header, "attention.head_count_kv") or heads,
        # GGUF stores epsilon as float32 (9.9999997e-06); the shortest decimal that rounds to it is the number meant.
        "rms_norm_eps": float(f"{epsilon:.7g}"),
        "rope_parameters": rope_parameters(header, head_dim),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
    }


def _of_first_layer(header: GgufHeader, key: str) -> int | None:
    """A whole number, of the first layer where Gemma 4 has one for each."""
    said = header.said(key)
    if header.architecture == "gemma4" and isinstance(said, list) and said and type(said[0]) is int:
        return said[0]
    return header.integer(key)


_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_TURN = "<|end|>"
_SPELLINGS = frozenset(
    (
        *(_TURN, "<|eot_id|>", "<|im_end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
        *("<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~["),
    )
)
_CONTROL = 3  # of `tokenizer.ggml.token_type`
# Where both of these are there, _TURN ends a part of an answer only (gpt-oss, Solar).
_UNLESS = ({"<|return|>", "<|call|>"}, {"<|calls|>", "<|flush|>"})


def special_ids(header: GgufHeader) -> dict[str, Any]:
    """`bos_token_id` and so on of config.json; `eos_token_id` is a list where several tokens end an answer."""
    tokens, named = header.values("tokenizer.ggml.tokens"), {"bos": "bos", "pad": "padding", "unk": "unknown"}
    found: dict[str, Any] = {f"{key}_token_id": header.token_id(name) for key, name in named.items()}
    kinds = header.values("tokenizer.ggml.token_type") or [_CONTROL] * len(tokens)
    # Only a special </s> ends an answer: in Gemma's vocabulary it is HTML (llama.cpp ends answers there too).
    spelled = {
        token: index
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if token in _SPELLINGS or (token == "</s>" and kind == _CONTROL)
    }
    all_ends = dict.fromkeys([*map(header.token_id, _ENDS), *spelled.values()])
    if any(present <= spelled.keys() for present in _UNLESS):
        all_ends.pop(spelled.get(_TURN), None)
    ends = [index for index in all_ends if index is not None]
    found["eos_token_id"] = ends[0] if len(ends) == 1 else ends or None
    return {key: value for key, value in found.items() if value is not None}


SMOLLM2_135M_INSTRUCT = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Of the default model, whose file says nothing: temperature and top-p of its card. Without the penalty 3 of 16 ordinary
# answers repeat themselves for ever (9 of 64 at temperature 0.7 and top-p 0.95), with it none of 48.
_SMOLLM2_SAMPLING = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1, "repeat_last_n": REPEAT_LAST_N}


def make_generation(header: GgufHeader, identity: str) -> dict[str, Any]:
    """generation_config.json: how llama.cpp would sample the model of that identity; empty: nothing is said.

    Its other samplers (mirostat, XTC) are not read: their text is no function of this one's settings.
    """

    def real(name: str) -> float | None:
        value = header.real(f"general.sampling.{name}")
        return None if value is None else float(f"{value:.7g}")  # the decimal that was meant, out of a float32

    temperature, top_p, min_p, penalty = map(real, ("temp", "top_p", "min_p", "penalty_repeat"))
    window = header.integer("general.sampling.penalty_last_n")
    is_greedy = temperature is not None and temperature < LEAST_TEMPERATURE  # in llama.cpp too
    values = {
        "temperature": 0.0 if is_greedy else temperature,
        "top_k": header.integer("general.sampling.top_k"),
        "top_p": None if top_p is None else min(1.0, top_p),
        "min_p": None if min_p is None else max(0.0, min_p),
        "repetition_penalty": penalty,
        "repeat_last_n": REPEAT_LAST_N if window is None and penalty is not None else window,
    }
    said = {name: value for name, value in values.items() if value is not None}
    return said or (dict(_SMOLLM2_SAMPLING) if identity == SMOLLM2_135M_INSTRUCT else {})

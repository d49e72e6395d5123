"""config.json out of a GGUF file's metadata, with the keys and values that transformers gives the same model.

Pure over the header, but for small tensors of rotary factors. Invariant: what the target adapter would compute
differently from what the file means is refused.
"""

from __future__ import annotations

from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.experts import experts_apart
from moa_shared.models.gguf.families import of_its_family, require_family
from moa_shared.models.gguf.gemma4 import ARCHITECTURE as GEMMA_4
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.names import hugging_face_name, known_shapes
from moa_shared.models.gguf.rope import FACTOR_TENSORS, rope_parameters
from moa_shared.models.gguf.special_tokens import special_ids
from moa_shared.models.network.family import check_family
from moa_shared.models.pooling import GGUF_KEY, GGUF_TYPES

_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_WHOLE = "Name a GGUF file of a whole model, or the first of its parts."


def make_config(header: GgufHeader) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ModelSourceError: another family, a rotary scaling that is not known, tensors that are missing, misshapen or
            not known.
    """
    require_family(header)
    if _EMBEDDINGS not in header.tensors:
        raise ModelSourceError(f"{header.path} holds no embeddings.", hint=_WHOLE)
    config = _sizes(header)
    config |= of_its_family(header, config)
    if config["model_type"] != "phi3" and "partial_rotary_factor" in config["rope_parameters"]:
        raise ModelSourceError(
            f"{header.path} rotates a part of each head, which no {header.architecture} model that moa serves does.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )
    config |= special_ids(header)
    if (pooling := GGUF_TYPES.get(header.integer(f"{header.architecture}.pooling_type") or 0)) is not None:
        config[GGUF_KEY] = pooling.value
    check_family(config, header.path.name)
    _refuse_strange_tensors(header, config)
    _check_shapes(header, config)
    _check_vocabulary(header, config["vocab_size"])
    return dict(sorted(config.items()))


def _sizes(header: GgufHeader) -> dict[str, Any]:
    """What the config.json of every family has."""
    family = header.architecture
    hidden = header.required(f"{family}.embedding_length")
    heads = header.required(f"{family}.attention.head_count")
    head_dim = header.integer(f"{family}.attention.key_length")
    if not head_dim and family != "phi3":  # which may rotate a part of a head
        head_dim = header.integer(f"{family}.rope.dimension_count")
    head_dim = head_dim or (hidden // heads if heads > 0 else 0)
    epsilon = header.real(f"{family}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise ModelSourceError(f"The GGUF file {header.path} does not set the epsilon of its norms.", hint=DAMAGED)
    return {
        "attention_bias": family != "qwen2" and "blk.0.attn_q.bias" in header.tensors,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": _first(header, f"{family}.feed_forward_length")
        or header.required(f"{family}.feed_forward_length"),
        "max_position_embeddings": header.required(f"{family}.context_length"),
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "model_type": family,
        "num_attention_heads": heads,
        "num_hidden_layers": header.required(f"{family}.block_count"),
        "num_key_value_heads": _first(header, f"{family}.attention.head_count_kv")
        or header.integer(f"{family}.attention.head_count_kv")
        or heads,
        # GGUF stores epsilon as float32 (9.9999997e-06); the shortest decimal that rounds to it is the number meant.
        "rms_norm_eps": float(f"{epsilon:.7g}"),
        "rope_parameters": rope_parameters(header, head_dim),
        "tie_word_embeddings": _HEAD not in header.tensors,
        "use_cache": True,
        "vocab_size": header.tensors[_EMBEDDINGS].shape[0],
    }


def _first(header: GgufHeader, key: str) -> int | None:
    """The first layer's number, where Gemma 4 has one for each; None: there is none, or no whole number."""
    said = header.metadata.get(key)
    is_by_layer = header.architecture == GEMMA_4 and isinstance(said, list) and said
    return said[0] if is_by_layer and isinstance(said, list) and type(said[0]) is int else None


def _refuse_strange_tensors(header: GgufHeader, config: dict[str, Any]) -> None:
    family = config["model_type"]
    unknown = sorted(
        name for name in header.tensors if hugging_face_name(name, family) is None and name not in FACTOR_TENSORS
    )
    if unknown:
        raise ModelSourceError(
            f"{header.path} holds {unknown[0]}, which no {header.architecture} model that moa serves has.",
            hint="Choose a model without experts or other additions to its family.",
        )


def _check_shapes(header: GgufHeader, config: dict[str, Any]) -> None:
    required, others = known_shapes(config, apart=experts_apart(header.tensors))
    missing = [name for name in required if name not in header.tensors]
    if missing:
        raise ModelSourceError(f"{header.path} lacks {len(missing)} tensors, {missing[0]} among them.", hint=_WHOLE)
    shapes = required | others
    for name, entry in header.tensors.items():
        if name in FACTOR_TENSORS:
            continue
        if name not in shapes:
            raise ModelSourceError(
                f"{header.path} holds {name}, which a model of {_counts(config)} does not have.", hint=DAMAGED
            )
        if entry.shape != shapes[name]:
            raise ModelSourceError(
                f"{name} of {header.path} has the shape {list(entry.shape)}, expected {list(shapes[name])}.",
                hint=DAMAGED,
            )


def _counts(config: dict[str, Any]) -> str:
    experts = config.get("num_experts") or config.get("num_local_experts")
    return f"{config['num_hidden_layers']} layers" + (f" with {experts} experts each" if experts else "")


def _check_vocabulary(header: GgufHeader, rows: int) -> None:
    tokens = header.texts("tokenizer.ggml.tokens")
    if tokens and len(tokens) != rows:
        raise ModelSourceError(f"{header.path} has {len(tokens)} tokens, but embeddings of {rows}.", hint=DAMAGED)

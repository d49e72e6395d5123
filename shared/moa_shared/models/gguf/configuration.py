"""config.json out of a GGUF file's metadata, with the keys and values that transformers gives the same model.

Pure over the header. Invariant: what the target adapter would compute differently from what the file means is refused.
"""

from __future__ import annotations

from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.experts import ARCHITECTURES, mixture_config, mixture_family
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.gguf.names import hugging_face_name, required_shapes
from moa_shared.models.network.description import EARLIEST
from moa_shared.models.network.family import check_family

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_ROPE_THETA = 10000.0  # llama.cpp's, where a file names none
_SPECIAL_IDS = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_EMBEDDINGS, _HEAD = "token_embd.weight", "output.weight"
_WHOLE = "Name a GGUF file of a whole model, or the first of its parts."


def make_config(header: GgufHeader) -> dict[str, Any]:
    """The content of config.json.

    Raises:
        ModelSourceError: another family, rotary scaling, tensors that are missing or not known.
    """
    family = header.architecture
    _refuse_other_families(header)
    _refuse_scaling(header)
    hidden = header.required(f"{family}.embedding_length")
    heads = header.required(f"{family}.attention.head_count")
    _refuse_strange_tensors(header)
    head_dim = header.integer(f"{family}.attention.key_length") or header.integer(f"{family}.rope.dimension_count")
    epsilon = header.real(f"{family}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise ModelSourceError(f"The GGUF file {header.path} does not set the epsilon of its norms.", hint=DAMAGED)
    theta = header.real(f"{family}.rope.freq_base") or _ROPE_THETA
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES.get(family)],
        "attention_bias": family == "llama" and "blk.0.attn_q.bias" in header.tensors,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "head_dim": head_dim or (hidden // heads if heads > 0 else 0),
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": header.required(f"{family}.feed_forward_length"),
        "max_position_embeddings": header.required(f"{family}.context_length"),
        "mlp_bias": family == "llama" and "blk.0.ffn_up.bias" in header.tensors,
        "model_type": family,
        "num_attention_heads": heads,
        "num_hidden_layers": header.required(f"{family}.block_count"),
        "num_key_value_heads": header.integer(f"{family}.attention.head_count_kv") or heads,
        # GGUF stores epsilon as float32 (9.9999997e-06); the shortest decimal that rounds to it is the number meant.
        "rms_norm_eps": float(f"{epsilon:.7g}"),
        "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": _HEAD not in header.tensors,
        "use_cache": True,
        "vocab_size": header.tensors[_EMBEDDINGS].shape[0],
    }
    config |= mixture_config(header)
    ids = {key: header.integer(f"tokenizer.ggml.{named}_token_id") for key, named in _SPECIAL_IDS.items()}
    config |= {f"{key}_token_id": value for key, value in ids.items() if value is not None}
    check_family(config, header.path.name)
    _check_shapes(header, config)
    return dict(sorted(config.items()))


def _refuse_other_families(header: GgufHeader) -> None:
    families = (*EARLIEST, *ARCHITECTURES)
    if header.architecture not in families:
        raise ModelSourceError(
            f"{header.path} is of the model family {header.architecture!r}, which moa does not read from GGUF.",
            hint=f"Use a folder of safetensors, or a GGUF file of one of the families {', '.join(families)}.",
        )


def _refuse_scaling(header: GgufHeader) -> None:
    family = header.architecture
    head_dim = header.integer(f"{family}.attention.key_length")
    rotated = header.integer(f"{family}.rope.dimension_count")
    partial = head_dim is not None and rotated is not None and rotated != head_dim
    scaled = header.text(f"{family}.rope.scaling.type") not in (None, "none") and mixture_family(header) != "gpt_oss"
    if "rope_freqs.weight" in header.tensors or scaled or partial:
        raise ModelSourceError(
            f"{header.path} scales its rotary positions, or rotates part of a head, which moa does not read from GGUF.",
            hint="Use the same model as a folder of safetensors or a hub id.",
        )


def _refuse_strange_tensors(header: GgufHeader) -> None:
    if _EMBEDDINGS not in header.tensors:
        raise ModelSourceError(f"{header.path} holds no embeddings.", hint=_WHOLE)
    family = mixture_family(header) or header.architecture
    unknown = sorted(name for name in header.tensors if hugging_face_name(name, family) is None)
    if unknown:
        raise ModelSourceError(
            f"{header.path} holds {unknown[0]}, which no {header.architecture} model that moa serves has.",
            hint="Choose a model without experts or other additions to its family.",
        )


def _check_shapes(header: GgufHeader, config: dict[str, Any]) -> None:
    expected = required_shapes(config)
    missing = [name for name in expected if name not in header.tensors]
    if missing:
        raise ModelSourceError(f"{header.path} lacks {len(missing)} tensors, {missing[0]} among them.", hint=_WHOLE)
    for name, shape in expected.items():
        got = header.tensors[name].shape
        if got != shape:
            raise ModelSourceError(
                f"{name} of {header.path} has the shape {list(got)}, expected {list(shape)}.", hint=DAMAGED
            )

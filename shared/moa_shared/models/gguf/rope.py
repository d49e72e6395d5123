"""Rotary parameters out of a GGUF file, as transformers has them: keys of its metadata, and factors that are tensors.

Sources: llama.cpp's converter and `llama_model::get_rope_factors`. Invariant: what is not understood is refused.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from moa_shared.errors import ModelSourceError
from moa_shared.models.gguf.header import DAMAGED, GgufHeader
from moa_shared.models.tensors import F32

FACTORS, LONG_FACTORS, SHORT_FACTORS = "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"
FACTOR_TENSORS = frozenset({FACTORS, LONG_FACTORS, SHORT_FACTORS})
_DEFAULT_THETA = 10000.0  # llama.cpp's, where a file names none
_YARN = {"yarn_beta_fast": "beta_fast", "yarn_beta_slow": "beta_slow"}


def rope_parameters(header: GgufHeader, head_dim: int) -> dict[str, Any]:
    """`rope_parameters` of config.json, of the layers that see all positions."""
    family = header.architecture
    scaling = f"{family}.rope.scaling"
    kind = header.text(f"{scaling}.type") or "linear"
    factor = header.positive(f"{scaling}.factor") or header.positive(f"{family}.rope.scale_linear") or 1.0
    found: dict[str, Any] = {"rope_theta": rope_theta(header), "rope_type": "default"}
    rotated = header.integer(f"{family}.rope.dimension_count") or head_dim
    if not 0 < rotated <= head_dim or rotated % 2:
        raise _refusal(header, f"rotates {rotated} of a head's {head_dim} numbers")
    if rotated != head_dim:
        found["partial_rotary_factor"] = _share(rotated, head_dim)
    original = header.integer(f"{scaling}.original_context_length") or header.required(f"{family}.context_length")
    attention = header.positive(f"{scaling}.yarn_attn_factor") or header.positive(f"{scaling}.attn_factor")
    scaled: dict[str, Any] = {"original_max_position_embeddings": original}
    if attention:
        scaled["attention_factor"] = attention
    if FACTORS in header.tensors:
        factors = read_factors(header, FACTORS, rotated)
        if factor != 1:
            raise _refusal(header, f"scales its positions by {factor} and by {FACTORS}")
        return found | scaled | {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": attention or 1.0,
        }  # fmt: skip
    if LONG_FACTORS in header.tensors or SHORT_FACTORS in header.tensors:
        short, long = (read_factors(header, name, rotated) for name in (SHORT_FACTORS, LONG_FACTORS))
        return found | scaled | {"rope_type": "longrope", "short_factor": short, "long_factor": long}
    if kind == "none" or (kind == "linear" and factor == 1):
        return found
    if kind == "linear":
        return found | {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        log_scale = header.real(f"{scaling}.yarn_log_multiplier")
        if log_scale:
            scaled |= {"mscale": 1.0, "mscale_all_dim": log_scale}
        betas = {name: header.positive(f"{scaling}.{key}") for key, name in _YARN.items()}
        scaled |= {name: value for name, value in betas.items() if value}
        return found | scaled | {"rope_type": "yarn", "factor": factor}
    raise _refusal(header, f"scales its positions by {kind!r}")


def rope_theta(header: GgufHeader, suffix: str = "") -> float:
    """The base of its angles; `suffix`: of the layers with a window."""
    return header.positive(f"{header.architecture}.rope.freq_base{suffix}") or _DEFAULT_THETA


def read_factors(header: GgufHeader, name: str, rotated: int) -> list[float]:
    """A tensor of factors, one for each pair of numbers that is rotated."""
    entry = header.tensors.get(name)
    if entry is None:
        raise _refusal(header, f"lacks {name}")
    if entry.stored != F32 or entry.shape != (rotated // 2,):
        raise ModelSourceError(
            f"{name} of {header.path} is {entry.stored.name} {list(entry.shape)}, expected f32 {[rotated // 2]}.",
            hint=DAMAGED,
        )
    values = np.fromfile(entry.path, "<f4", rotated // 2, offset=entry.offset)
    if not (np.isfinite(values) & (values > 0)).all():
        raise ModelSourceError(f"{name} of {header.path} holds factors that are no numbers above 0.", hint=DAMAGED)
    return [float(value) for value in values]


def _share(rotated: int, head_dim: int) -> float:
    """The factor that, times `head_dim` and rounded down, is `rotated`."""
    share = rotated / head_dim
    return share if int(head_dim * share) == rotated else math.nextafter(share, 1)


def _refusal(header: GgufHeader, what: str) -> ModelSourceError:
    return ModelSourceError(
        f"{header.path} {what}, which moa does not read from GGUF.",
        hint="Use the same model as a folder of safetensors or a hub id.",
    )

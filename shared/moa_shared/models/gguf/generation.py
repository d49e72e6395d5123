"""generation_config.json out of a GGUF file's metadata: how llama.cpp would sample the model's answers by default.

Pure over the header. Its other samplers (mirostat, XTC) are not read: their text is no function of this one's settings.
"""

from __future__ import annotations

from typing import Any

from moa_shared.models.gguf.header import GgufHeader
from moa_shared.sampling.settings import LEAST_TEMPERATURE, REPEAT_LAST_N

_KEY = "general.sampling."
SMOLLM2_135M_INSTRUCT = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Of models whose files say nothing, by identity. Temperature and top-p are those of the model's card. Without the
# penalty 3 of 16 ordinary answers repeat themselves for ever (9 of 64 at temperature 0.7 and top-p 0.95), with it none
# of 48.
_FOR_FILES: dict[str, dict[str, Any]] = {
    SMOLLM2_135M_INSTRUCT: {
        "temperature": 0.2,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "repeat_last_n": REPEAT_LAST_N,
    }
}


def make_generation(header: GgufHeader, identity: str) -> dict[str, Any]:
    """What it says, or what is known of it, by transformers' names; empty: nothing.

    Args:
        identity: of the model (`gguf.identity`).
    """
    return _said(header) or dict(_FOR_FILES.get(identity, {}))


def _said(header: GgufHeader) -> dict[str, Any]:
    temperature = _real(header, "temp")
    if temperature is not None and temperature < LEAST_TEMPERATURE:
        temperature = 0.0  # greedy in llama.cpp too
    top_p, min_p = _real(header, "top_p"), _real(header, "min_p")
    penalty = _real(header, "penalty_repeat")
    window = header.integer(f"{_KEY}penalty_last_n")
    values = {
        "temperature": temperature,
        "top_k": header.integer(f"{_KEY}top_k"),
        "top_p": None if top_p is None else min(1.0, top_p),
        "min_p": None if min_p is None else max(0.0, min_p),
        "repetition_penalty": penalty,
        "repeat_last_n": REPEAT_LAST_N if window is None and penalty is not None else window,
    }
    return {name: value for name, value in values.items() if value is not None}


def _real(header: GgufHeader, name: str) -> float | None:
    value = header.real(_KEY + name)
    return None if value is None else float(f"{value:.7g}")  # the decimal that was meant, out of a float32

"""How a model's own files would have its answers sampled by default. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from moa_shared.sampling.settings import WHOLE_CONTEXT, Sampling

# As transformers names them in generation_config.json; the last is ours, for files of llama.cpp's.
_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "repeat_last_n",
}
_WHOLE = ("top_k", "repeat_last_n")


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What a model says about sampling; None: nothing. `Sampling` describes the values."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None

    def said(self) -> dict[str, Any]:
        """What it does say, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


NOTHING_SAID = SamplingDefaults()
# Of chats, where neither user nor model says anything. Greedy answers of small models repeat themselves for ever.
CHAT_DEFAULTS = SamplingDefaults(temperature=0.7, top_p=0.95)


def sampling_defaults(generation: Mapping[str, Any]) -> SamplingDefaults:
    """The defaults in the content of generation_config.json.

    Raises:
        ConfigError, ValueError: a value outside its range, or of another type.
    """
    values = {
        ours: _number(name, generation[name], is_whole=ours in _WHOLE)
        for name, ours in _NAMES.items()
        if generation.get(name) is not None
    }
    if values.get("top_k", 0) < 0:  # how some write that all tokens are kept
        values["top_k"] = 0
    if "repeat_penalty" in values:
        values.setdefault("repeat_last_n", WHOLE_CONTEXT)  # transformers looks at all of the text
    samples = generation.get("do_sample")
    if samples is not None and not isinstance(samples, bool):
        raise ValueError(f"do_sample is {samples!r}, expected true or false")
    if samples is False:
        values["temperature"] = 0.0
    Sampling(**values)
    return SamplingDefaults(**values)


def _number(name: str, value: object, *, is_whole: bool) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} is {value!r}, expected a number")
    if not is_whole:
        return float(value)
    if value != int(value):
        raise ValueError(f"{name} is {value!r}, expected a whole number")
    return int(value)

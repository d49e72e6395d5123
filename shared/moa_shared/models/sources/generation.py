"""What a model's files say besides its configuration: what ends answers, how they are sampled and states pooled.

Sources of pooling: sentence-transformers' `1_Pooling/config.json`, and `pooling_type` of GGUF (llama.cpp's
`llama_pooling_type`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling, SamplingDefaults, sampling_defaults
from moa_shared.text.json_text import parse_json

GENERATION_CONFIG = "generation_config.json"
OWN_SETTINGS = "own"


def read_generation(files: ModelFiles) -> Mapping[str, Any]:
    path = files.folder / GENERATION_CONFIG
    try:
        content = parse_json(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint="Fetch the model again.") from None
    if not isinstance(content, dict):
        raise ModelSourceError(f"{path} cannot be read (no JSON object).", hint="Fetch the model again.")
    return content


def read_sampling_defaults(files: ModelFiles) -> SamplingDefaults:
    """How the model's answers are sampled by default."""
    try:
        return sampling_defaults(read_generation(files))
    except (ConfigError, ValueError, OverflowError) as error:
        reason = (error.message if isinstance(error, ConfigError) else str(error)).removesuffix(".")
        path = files.folder / GENERATION_CONFIG
        raise ModelSourceError(
            f"{path} cannot be used: {reason}.", hint="Correct that value in the model's folder, or remove it."
        ) from None


def asked_sampling(temperature: str, files: ModelFiles) -> Sampling:
    """How a measurement's answers are sampled: at a temperature, or "own": as a chat's, as the model's files say."""
    if temperature == OWN_SETTINGS:
        return Sampling(**CHAT_DEFAULTS.said() | read_sampling_defaults(files).said())
    try:
        return Sampling(temperature=float(temperature))
    except ValueError:
        raise ConfigError(f"--temperature is {temperature!r}, expected a number or {OWN_SETTINGS}.") from None


def end_of_text(files: ModelFiles, tokenizer_eos: int | None) -> frozenset[int]:
    """The token ids that end an answer: of the model, of its generation settings and of its tokenizer."""
    found: set[int] = set()
    generation = read_generation(files)
    try:
        for value in (files.config.get("eos_token_id"), generation.get("eos_token_id"), tokenizer_eos):
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        return frozenset(int(token) for token in found)
    except (ValueError, TypeError) as error:
        path = files.folder / GENERATION_CONFIG
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint="Fetch the model again.") from None


GGUF_KEY = "pooling_type"  # of the configuration that is made of a GGUF file


class Pooling(Enum):
    MEAN = "mean"  # of all tokens' states
    LAST = "last"  # the last token's state


@dataclass(frozen=True, slots=True)
class ModelPooling:
    kind: Pooling = Pooling.MEAN
    is_trained: bool = False  # its files say so: it was made for embeddings


UNKNOWN_POOLING = ModelPooling()
_MODES = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_lasttoken": Pooling.LAST}
GGUF_TYPES = {1: Pooling.MEAN, 3: Pooling.LAST}


def find_pooling(files: ModelFiles) -> ModelPooling:
    """How a model is pooled; the mean where its files do not say. ModelSourceError: they want another way."""
    if (named := files.config.get(GGUF_KEY)) is not None:
        return ModelPooling(Pooling(named), is_trained=True)
    path = files.folder / "1_Pooling/config.json"
    if not path.is_file():
        return UNKNOWN_POOLING
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelSourceError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from None
    modes = content.items() if isinstance(content, Mapping) else ()
    wanted = [name for name, is_on in modes if name.startswith("pooling_mode") and is_on is True]
    kind = _MODES.get(wanted[0]) if len(wanted) == 1 else None
    if kind is None:
        raise ModelSourceError(
            f"{path} pools by {', '.join(wanted) or 'nothing'}, which is not known here.",
            hint=f"Known: {', '.join(_MODES)}.",
        )
    return ModelPooling(kind, is_trained=True)

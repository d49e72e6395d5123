"""generation_config.json of a model: what ends its answers, and how they are sampled by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.sampling.settings import CHAT_DEFAULTS, Sampling, SamplingDefaults, sampling_defaults
from moa_shared.text.json_text import parse_json

GENERATION_CONFIG = "generation_config.json"
OWN_SETTINGS = "own"


def read_generation(files: ModelFiles) -> Mapping[str, Any]:
    """Its content; empty where there is none."""
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
    """How a measurement's answers are sampled.

    Args:
        temperature: a number, 0 for greedy answers; "own": as a chat's, by what the model's files say.
    """
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

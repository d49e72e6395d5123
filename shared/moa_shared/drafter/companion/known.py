"""Which small models fit which targets as companions, as far as that can be told from a configuration. Pure.

By family and size of the vocabulary: the tokens themselves are compared when a companion is loaded
(`check_vocabulary`), and decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class KnownCompanion:
    """A published small model.

    Args:
        hub: its id there; ours also reads it as a GGUF file.
        millions: of weights.
        hidden_size: its own; targets of its family are wider.
        families: model types of targets.
        vocabularies: rows of their embeddings; some are padded.
        targets: those targets, for people.
        licence: of its weights.
    """

    hub: str
    millions: int
    hidden_size: int
    families: tuple[str, ...]
    vocabularies: tuple[int, ...]
    targets: str
    licence: str


_SMOLLM2 = (("llama",), (49152,))
_GEMMA3 = (("gemma3_text",), (262144, 262208))
# Of those that fit, the larger one first: it agrees with more of the target's text.
KNOWN_COMPANIONS = (
    KnownCompanion("HuggingFaceTB/SmolLM2-360M-Instruct", 362, 960, *_SMOLLM2, "SmolLM2 1.7B", "Apache-2.0"),
    KnownCompanion("HuggingFaceTB/SmolLM2-135M-Instruct", 135, 576, *_SMOLLM2, "SmolLM2 360M and 1.7B", "Apache-2.0"),
    KnownCompanion(
        "Qwen/Qwen3-0.6B", 596, 1024, ("qwen3", "qwen3_moe"), (151936,), "Qwen3 1.7B to 235B-A22B", "Apache-2.0"
    ),
    KnownCompanion(
        "Qwen/Qwen2.5-0.5B-Instruct", 494, 896, ("qwen2",), (151936, 152064), "Qwen2.5 1.5B to 72B", "Apache-2.0"
    ),
    KnownCompanion(
        "meta-llama/Llama-3.2-1B-Instruct",
        1236,
        2048,
        ("llama",),
        (128256,),
        "Llama 3.1 to 3.3, 3B to 405B",
        "Llama 3.2",
    ),
    KnownCompanion("google/gemma-3-1b-it", 1000, 1152, *_GEMMA3, "Gemma 3 4B to 27B", "Gemma"),
    KnownCompanion("google/gemma-3-270m-it", 268, 640, *_GEMMA3, "Gemma 3 1B to 27B", "Gemma"),
    KnownCompanion(
        "allenai/OLMo-2-0425-1B-Instruct", 1485, 2048, ("olmo2",), (100352,), "OLMo 2 7B to 32B", "Apache-2.0"
    ),
)


def fitting_companions(config: Mapping[str, Any]) -> list[KnownCompanion]:
    """Those that would fit a target, given its configuration."""
    return [
        known
        for known in KNOWN_COMPANIONS
        if config.get("model_type") in known.families
        and config.get("vocab_size") in known.vocabularies
        and int(config.get("hidden_size") or 0) > known.hidden_size
    ]


def companions_table() -> str:
    lines = ["| companion | million weights | for | licence |", "| --- | ---: | --- | --- |"]
    lines += [f"| `{each.hub}` | {each.millions} | {each.targets} | {each.licence} |" for each in KNOWN_COMPANIONS]
    return "\n".join(lines)

"""Which small models fit which targets as companions."""

from __future__ import annotations

from typing import Any

import pytest
from moa_shared.drafter.companion.known import KNOWN_COMPANIONS, fitting_companions
from moa_shared.models.network.description import FAMILIES


@pytest.mark.parametrize(
    ("family", "rows", "hidden", "fitting"),
    [
        ("llama", 49152, 2048, ["SmolLM2-360M-Instruct", "SmolLM2-135M-Instruct"]),  # SmolLM2-1.7B
        ("llama", 49152, 576, []),  # SmolLM2-135M itself
        ("llama", 128256, 4096, ["Llama-3.2-1B-Instruct"]),  # Llama-3.1-8B
        ("llama", 32000, 4096, []),  # Llama 2
        ("qwen3_moe", 151936, 2048, ["Qwen3-0.6B"]),  # Qwen3-30B-A3B
        ("qwen2", 152064, 3584, ["Qwen2.5-0.5B-Instruct"]),  # Qwen2.5-7B
        ("gemma3_text", 262208, 2560, ["gemma-3-1b-it", "gemma-3-270m-it"]),  # Gemma-3-4B
        ("gemma3_text", 262144, 1152, ["gemma-3-270m-it"]),  # Gemma-3-1B
        ("olmo2", 100352, 4096, ["OLMo-2-0425-1B-Instruct"]),  # OLMo-2-7B
    ],
)
def test_by_family_vocabulary_and_size(family: str, rows: int, hidden: int, fitting: list[str]) -> None:
    config: dict[str, Any] = {"model_type": family, "vocab_size": rows, "hidden_size": hidden}
    assert [known.hub.partition("/")[2] for known in fitting_companions(config)] == fitting


def test_all_are_of_families_that_are_served() -> None:
    assert {family for known in KNOWN_COMPANIONS for family in known.families} <= set(FAMILIES)

"""Which models may be companions of which."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.drafter.companion.known import KNOWN_COMPANIONS, fitting_companions
from moa_shared.drafter.companion.loading import check_vocabulary, token_count
from moa_shared.errors import MismatchError
from moa_shared.models.families import FAMILIES
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.tokenization.tokenizer_json import JsonTokenizer

from tests.support.messages import raises


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


WORDS = ["<end>", "a", "b", "c"]


def vocabulary(words: Sequence[str] = WORDS, special: Sequence[str] = ("<end>",)) -> Tokenizer:
    numbers = {word: number for number, word in enumerate(words)}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": numbers[word], "content": word, "special": True, **plain} for word in special]
    model = {"type": "WordLevel", "vocab": numbers, "unk_token": "?"}
    content = {"version": "1.0", "added_tokens": added, "model": model}
    return Tokenizer(JsonTokenizer(json.dumps(content)))


def test_padding_and_what_only_the_companion_has_are_no_difference() -> None:
    padded = [*WORDS, "[PAD4]", "[PAD5]"]
    check_vocabulary(vocabulary(padded), vocabulary(), "small", "large")
    check_vocabulary(vocabulary(), vocabulary(padded), "small", "large")
    check_vocabulary(vocabulary([*WORDS, "d"]), vocabulary(), "small", "large")
    assert token_count(vocabulary(padded)) == token_count(vocabulary()) == 4


def test_the_first_token_that_differs_is_named_with_both_texts() -> None:
    with raises(
        MismatchError,
        snapshot(
            "small cannot be a companion of large: token 2 is 'b' there and 'B' here. Choose a small model of the target's own family (docs/drafters.md#a-companion)."
        ),
    ):
        check_vocabulary(vocabulary(["<end>", "a", "B", "C"]), vocabulary(), "small", "large")


def test_a_token_that_the_companion_lacks_is_a_difference() -> None:
    with raises(
        MismatchError,
        snapshot(
            "small cannot be a companion of large: token 4 is 'd' there and none here. Choose a small model of the target's own family (docs/drafters.md#a-companion)."
        ),
    ):
        check_vocabulary(vocabulary(), vocabulary([*WORDS, "d"]), "small", "large")


def test_a_token_that_is_special_to_one_of_them_is_a_difference() -> None:
    with raises(
        MismatchError,
        snapshot(
            "small cannot be a companion of large: token 0 is '<end>' there and the special token '<end>' here. Choose a small model of the target's own family (docs/drafters.md#a-companion)."
        ),
    ):
        check_vocabulary(vocabulary(), vocabulary(special=()), "small", "large")

"""Which small models can be companions: the same token for every id of the target."""

from __future__ import annotations

import json
from collections.abc import Sequence

from inline_snapshot import snapshot
from moa_shared.drafter.companion.vocabulary import check_vocabulary, token_count
from moa_shared.errors import MismatchError
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.tokenization.tokenizer_json import JsonTokenizer

from tests.support.messages import raises

WORDS = ["<end>", "a", "b", "c"]


def vocabulary(words: Sequence[str] = WORDS, special: Sequence[str] = ("<end>",)) -> Tokenizer:
    numbers = {word: number for number, word in enumerate(words)}
    added = [{"id": numbers[word], "content": word, "special": True} for word in special]
    content = {"added_tokens": added, "model": {"type": "WordLevel", "vocab": numbers}}
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

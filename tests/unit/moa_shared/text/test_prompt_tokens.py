"""Prompts of any length, tokenized by the default model's tokenizer."""

from __future__ import annotations

from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ContextLengthError
from moa_shared.models import ModelFiles
from moa_shared.models.tokenizer.tokenizer import load_tokenizer
from moa_shared.text.template import PIECE, prompt_tokens

from tests.support.messages import raises


class Counting:
    """A tokenizer of one token a character, which counts those that it was given."""

    def __init__(self) -> None:
        self.characters = 0

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        self.characters += len(text)
        return [0] * len(text)


def test_what_cannot_fit_is_refused_before_all_of_it_is_read() -> None:
    tokenizer = Counting()
    with raises(
        ContextLengthError, snapshot("The prompt has far more tokens than the 1000 of the context. Shorten the prompt.")
    ):
        prompt_tokens(cast("Any", tokenizer), "a" * 100 * PIECE, 1000)
    assert tokenizer.characters == PIECE


@pytest.mark.parametrize("text", ["a", "hello world ", " ", "one\n\ntwo 1984 ", "\N{GRINNING FACE}", "<|im_start|>"])
def test_what_may_fit_has_the_tokens_that_it_has_in_one_piece(default_model_files: ModelFiles, text: str) -> None:
    tokenizer = load_tokenizer(default_model_files)
    long = text * (2 * PIECE // len(text))
    tokens = tokenizer.encode(long)
    assert prompt_tokens(tokenizer, long, len(tokens)) == tokens

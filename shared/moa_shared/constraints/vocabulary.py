"""The tokens of a model as llguidance knows them."""

from __future__ import annotations

from collections.abc import Iterable

from llguidance import LLTokenizer

from moa_shared.errors import ModelSourceError
from moa_shared.models.tokenizer.tokenizer import Tokenizer


def vocabulary_of(tokenizer: Tokenizer, size: int, end_of_text: Iterable[int]) -> LLTokenizer:
    """The vocabulary of a model: 0.3 s for 49,000 tokens, in which all threads of Python stand still.

    Args:
        size: rows of the model's head, at least; those without a token are never allowed.
        end_of_text: tokens that end an answer.

    Raises:
        ModelSourceError: the library cannot read the tokenizer.
    """
    try:
        return LLTokenizer(tokenizer.to_json(), n_vocab=max(size, tokenizer.size), eos_token=sorted(end_of_text))
    except ValueError as error:
        raise ModelSourceError(f"Answers of this model cannot be constrained: {error}.") from None

"""A vocabulary of single bytes, a few longer tokens and an end of text, for constraints without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from llguidance import LLTokenizer, TokenizerWrapper
from moa_shared.constraints.trial import ByteTokens

_BYTES = ByteTokens([b'{"', b'": ', b"true", b"false", b", ", b"10", b"ab", b'"}', b"null"])
TOKENS = _BYTES.tokens
END = _BYTES.eos_token_id


@cache
def byte_vocabulary() -> LLTokenizer:
    """The vocabulary."""
    return LLTokenizer(TokenizerWrapper(_BYTES), eos_token=END)


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without the end."""
    return b"".join(TOKENS[token] for token in tokens if token != END).decode()

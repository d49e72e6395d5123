"""A vocabulary of single bytes, a few longer tokens and an end of text, for constraints without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from llguidance import LLTokenizer, TokenizerWrapper

LONGER = [b'{"', b'": ', b"true", b"false", b", ", b"10", b"ab", b'"}', b"null"]
TOKENS = [bytes([byte]) for byte in range(256)] + LONGER + [b"<end>"]
END = len(TOKENS) - 1


class _Bytes:
    eos_token_id = END
    bos_token_id = None
    tokens = TOKENS
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def byte_vocabulary() -> LLTokenizer:
    """The vocabulary."""
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=END)


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without the end."""
    return b"".join(TOKENS[token] for token in tokens if token != END).decode()

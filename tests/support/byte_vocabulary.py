"""A vocabulary of single bytes, a few longer tokens and an end of text, for constraints without a model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from llguidance import LLTokenizer, TokenizerWrapper
from moa_shared.constraints.constrained_text import ByteTokens, ConstrainedText
from moa_shared.constraints.grammar import compile_grammar
from moa_shared.sampling.settings import Constraint

_BYTES = ByteTokens([b'{"', b'": ', b"true", b"false", b", ", b"10", b"ab", b'"}', b"null"])
TOKENS = _BYTES.tokens
END = _BYTES.eos_token_id


@cache
def byte_vocabulary() -> LLTokenizer:
    """The vocabulary."""
    return LLTokenizer(TokenizerWrapper(_BYTES), eos_token=END)


def begin(constraint: Constraint, vocabulary: LLTokenizer | None = None) -> ConstrainedText:
    """An answer before its first token, a copy of one that is kept: to compile a constraint takes as long as to write it.

    Args:
        vocabulary: None: the one of this module.
    """
    return _begun(constraint, vocabulary or byte_vocabulary()).copy()


@lru_cache(64)
def _begun(constraint: Constraint, vocabulary: LLTokenizer) -> ConstrainedText:
    return ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without the end."""
    return b"".join(TOKENS[token] for token in tokens if token != END).decode()

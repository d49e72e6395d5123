"""A vocabulary of single bytes, a few longer tokens and an end of text, for constraints without a model."""

from collections.abc import Sequence
from functools import cache, lru_cache
from typing import cast

from llguidance import LLTokenizer, TokenizerWrapper
from moa_shared.constraints.compiler import ConstraintCompiler
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

    `vocabulary`: None: the one of this module.
    """
    return _begun(constraint, vocabulary or byte_vocabulary()).copy()


@lru_cache(64)
def _begun(constraint: Constraint, vocabulary: LLTokenizer) -> ConstrainedText:
    return ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)


def text_of(tokens: Sequence[int]) -> str:
    """The text of tokens, without the end."""
    return b"".join(TOKENS[token] for token in tokens if token != END).decode()


FIRST = 32  # the character of token 0


class Characters:
    """A tokenizer of `end` characters from the space on, as `TokenizerWrapper` asks for it; token `end` ends a text."""

    bos_token_id = None

    def __init__(self, end: int) -> None:
        self.tokens = [*(bytes([FIRST + token]) for token in range(end)), b"<end>"]
        self.eos_token_id = end
        self.special_token_ids = [end]

    def __call__(self, text: bytes) -> list[int]:
        return [character - FIRST for character in text]


@cache
def characters(end: int) -> LLTokenizer:
    """The vocabulary."""
    return LLTokenizer(TokenizerWrapper(Characters(end)), eos_token=end)


class ToyForms:
    """Compiles forms for a toy target. `end`: its last token, which ends a text."""

    def __init__(self, end: int) -> None:
        self._vocabulary = characters(end)

    def begin(self, constraint: Constraint) -> ConstrainedText:
        return begin(constraint, self._vocabulary)

    def known(self, constraint: Constraint) -> ConstrainedText | None:
        return None

    def as_compiler(self) -> ConstraintCompiler:
        """The same for a server."""
        return cast(ConstraintCompiler, self)

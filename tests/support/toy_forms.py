"""Forms of answers over a vocabulary of single characters, for toy targets: no child process tries them first."""

from __future__ import annotations

from functools import cache
from typing import cast

from llguidance import LLTokenizer, TokenizerWrapper
from moa_shared.constraints.compiler import ConstraintCompiler
from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.sampling.settings import Constraint

from tests.support.byte_vocabulary import begin

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
    """Compiles forms for a toy target.

    Args:
        end: its last token, which ends a text.
    """

    def __init__(self, end: int) -> None:
        self._vocabulary = characters(end)

    def begin(self, constraint: Constraint) -> ConstrainedText:
        return begin(constraint, self._vocabulary)

    def known(self, constraint: Constraint) -> ConstrainedText | None:
        return None

    def as_compiler(self) -> ConstraintCompiler:
        """The same for a server."""
        return cast(ConstraintCompiler, self)


def characters_of(tokens: list[int], end: int) -> str:
    """The text of tokens, without the end."""
    return "".join(chr(FIRST + token) for token in tokens if token != end)

"""What the child process does with a constraint: compile it, over a vocabulary of single bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from llguidance import LLTokenizer, TokenizerWrapper

from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar
from moa_shared.sampling.settings import Constraint
from moa_shared.tree.draft_tree import DraftTree

MOST_TOKENS = 300_000  # more than the largest vocabularies have; they take 0.1 s once


class ByteTokens:
    """A tokenizer of single bytes, as `TokenizerWrapper` asks for it; its last token ends a text.

    Args:
        longer: further tokens, which no text is encoded with.
    """

    bos_token_id = None

    def __init__(self, longer: Sequence[bytes] = ()) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), *longer, b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _vocabulary() -> LLTokenizer:
    tokens = ByteTokens([b""] * MOST_TOKENS)
    return LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.eos_token_id)


def try_constraint(constraint: Constraint) -> None:
    """Compiles a constraint, and finds what an answer may begin with."""
    vocabulary = _vocabulary()
    text = ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)
    text.allowed(DraftTree((), ()))

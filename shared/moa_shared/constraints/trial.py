"""What the child process does with a constraint: compile it, over a vocabulary of single bytes."""

from __future__ import annotations

from llguidance import LLTokenizer, TokenizerWrapper

from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar
from moa_shared.sampling.constraint import Constraint
from moa_shared.tree.draft_tree import DraftTree

BYTES = 256


class _Bytes:
    """What `TokenizerWrapper` asks of a tokenizer."""

    eos_token_id = BYTES
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(BYTES)), b"<end>")
    special_token_ids = (BYTES,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def try_constraint(constraint: Constraint) -> None:
    """Compiles a constraint, and finds what an answer may begin with.

    Raises:
        ConfigError: it cannot be enforced.
    """
    vocabulary = LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=BYTES)
    text = ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)
    text.allowed(DraftTree((), ()))

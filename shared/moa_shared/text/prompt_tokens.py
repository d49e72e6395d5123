"""Tokens of a prompt, which may be of any length: one that cannot fit the context is refused before all of it is read.

Pure over a tokenizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moa_shared.errors import ContextLengthError

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

PIECE = 1 << 15  # characters; most prompts are shorter
MARGIN = 2  # a cut between two pieces makes a few tokens more, never as many as there are


def prompt_tokens(tokenizer: Tokenizer, text: str, context_tokens: int, *, is_guarded: bool = False) -> list[int]:
    """The tokens of a text; they may still be more than the context takes.

    Args:
        is_guarded: as for `Tokenizer.encode`.

    A bound on the number of characters would refuse little: one token may be 80 spaces.

    Raises:
        ContextLengthError: they are far more.
    """
    if len(text) > PIECE:
        tokens = 0
        for begin in range(0, len(text), PIECE):
            tokens += len(tokenizer.encode(text[begin : begin + PIECE], is_guarded=is_guarded))
            if tokens > MARGIN * context_tokens:
                raise ContextLengthError(
                    f"The prompt has far more tokens than the {context_tokens} of the context.",
                    hint="Shorten the prompt.",
                )
    return tokenizer.encode(text, is_guarded=is_guarded)

"""Whether a companion has the vocabulary of a target: the same token for each id. Pure."""

from __future__ import annotations

from moa_shared.errors import MismatchError
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.text.plain_text import plain_line

_MOST_SHOWN = 40  # characters of a token in a message
_HINT = "Choose a small model of the target's own family (docs/drafters.md#a-companion)."


def check_vocabulary(companion: Tokenizer, target: Tokenizer, name: str, target_name: str) -> None:
    """Refuses a companion to which an id means another token than to the target.

    What only the companion has beyond the target's tokens is never said, and rows that only pad a vocabulary to a round
    size are no tokens, also where a GGUF file spells them ([PAD151669]).

    Args:
        name, target_name: of the models, for messages.

    Raises:
        MismatchError: with the first id that differs, and what it is to both.
    """
    theirs, ours = _tokens(target), _tokens(companion)
    for number, token in theirs.items():
        own = ours.get(number)
        if own != token:
            raise MismatchError(
                f"{name} cannot be a companion of {target_name}: token {number} is {_words(token)} there and"
                f" {_words(own)} here.",
                hint=_HINT,
            )


def token_count(target: Tokenizer) -> int:
    """How many ids may be tokens of the target: the largest, and one; rows of its head beyond are padding."""
    return max(_tokens(target), default=-1) + 1


def _tokens(tokenizer: Tokenizer) -> dict[int, tuple[str, bool]]:
    """By id, in order: how a token is spelled, and whether it is a special one."""
    special = set(tokenizer.special_tokens.values())
    spelled = sorted((number, text) for text, number in tokenizer.vocabulary.items())
    return {number: (text, number in special) for number, text in spelled if text != f"[PAD{number}]"}


def _words(token: tuple[str, bool] | None) -> str:
    if token is None:
        return "none"
    text, is_special = token
    return f"{'the special token ' if is_special else ''}{plain_line(repr(text), _MOST_SHOWN)}"

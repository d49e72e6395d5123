"""What is read out of an answer: its text and its calls, in pieces as they come. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

ANSWER = -1


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Some text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The beginning of a call: its name is known.

    Args:
        index: of the call in the answer, from 0.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Some text of a call's arguments; all of it together is a JSON object once the call has ended."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The end of a whole call."""

    index: int


@dataclass(frozen=True, slots=True)
class CallBroken:
    """The end of a call that is not whole: the answer was cut, or its arguments are not JSON.

    Args:
        index: of the call; it may not have started, where even its name is missing.
        text: all that the model wrote of it, markup included.
    """

    index: int
    text: str


Piece = TextPiece | CallStarted | CallArguments | CallEnded | CallBroken


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """The same with adjacent pieces of one text as one."""
    whole: list[Piece] = []
    for of, group in groupby(pieces, key=_text_of):
        if of is None:
            whole += group
            continue
        text = "".join(piece.text for piece in group if isinstance(piece, TextPiece | CallArguments))
        whole.append(TextPiece(text) if of == ANSWER else CallArguments(of, text))
    return whole


def _text_of(piece: Piece) -> int | None:
    """Which text this is a piece of: the arguments of a call, or the answer's; None: of none."""
    match piece:
        case TextPiece():
            return ANSWER
        case CallArguments(index):
            return index
        case _:
            return None

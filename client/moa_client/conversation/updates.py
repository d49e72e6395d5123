"""What surfaces (chat, page, endpoint) receive of a conversation: its events, with what each does to an answer's text.

Pure. A surface that applies each update to an `AnswerText` holds the text as it is to be shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_shared.errors import MoaError

from moa_client.conversation.answer_options import OPEN, AnswerOptions
from moa_client.conversation.events import Event

if TYPE_CHECKING:
    from moa_client.conversation.answer_figures import Figures, LinkStatus


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer begins.

    Args:
        options: how it is chosen; a conversation leaves nothing of them open.
    """

    question: str
    options: AnswerOptions = OPEN


@dataclass(frozen=True, slots=True)
class Continued:
    """The newest answer, which had ended, goes on.

    Args:
        options: as if it had been asked with them.
    """

    options: AnswerOptions


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer ends here with what is committed of it; no `Ended` follows.

    About no answer: a request was refused, or something has failed between answers; the conversation continues.

    Args:
        error: why.
        taken_back: the question got no answer and is not part of the conversation. About no answer: what a surface
            wished for was not done, nor will be.
    """

    error: MoaError
    taken_back: bool = False


@dataclass(frozen=True, slots=True)
class NotKept:
    """From here on nothing of the conversation is kept in the history; `error` says why."""

    error: MoaError


@dataclass(frozen=True, slots=True)
class Rewound:
    """Only the first `answers` answers remain in the conversation; 0: it begins again."""

    answers: int


@dataclass(frozen=True, slots=True)
class Titled:
    """The conversation has another title."""

    title: str


Happening = Event | Asked | Continued | Failed | NotKept | Rewound | Titled


@dataclass(frozen=True, slots=True)
class Update:
    """One event of a conversation.

    Args:
        event: what has happened; never `Earlier`: `answer` says which answer it is about.
        answer: the number of that answer in the conversation, from 1; 0: it is about none.
        piece: what it adds to that answer's committed text; `Settled` has all of it in `text` instead.
        provisional: all provisional text of that answer after it; `waiting`: tokens of that. `HeldBack` and `Refused`
            leave that text as it is.
        text: of `Settled`, all committed text.
        status: of the link, after it.
        figures: of an answer that has ended.
    """

    event: Happening
    answer: int = 0
    piece: str = ""
    provisional: str = ""
    waiting: int = 0
    text: str = ""
    status: LinkStatus | None = None
    figures: Figures | None = None

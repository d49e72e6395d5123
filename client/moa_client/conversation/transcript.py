"""The text of an answer as its events arrive: committed text, then provisional text. Pure.

Invariants: committed text only grows; whatever was provisional in between, the final text is that of the committed
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.text_stream import TextStream

from moa_client.conversation.events import (
    Committed,
    Corrected,
    Earlier,
    Ended,
    Event,
    HeldBack,
    Provisional,
    Refused,
    Settled,
)
from moa_client.conversation.updates import Update

if TYPE_CHECKING:
    from moa_client.conversation.answer_figures import Figures

ENDED_BY_TEXT = (Finish.END_OF_TEXT, Finish.STOP)  # in the others more would follow


class Transcript:
    """Collects the text of one answer.

    Args:
        decode: text of some tokens.
        stop: strings before which the text ends.
        question: what it answers, for remarks.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = (), question: str = "") -> None:
        self.question = question
        self.finish = Finish.UNFINISHED
        self.committed = ""
        self.provisional = ""
        self.ended = ""  # all text when it ended without the server
        self.tokens = 0  # committed ones
        self.waiting: list[int] = []  # provisional tokens
        self._stream = TextStream(decode, stop)
        self._ahead = self._stream  # with the provisional tokens, if any
        self._decided: int | None = None  # tokens committed since it ended without the server

    def restore(self, committed: Sequence[int], text: str, waiting: Sequence[int], decided_from: int) -> None:
        """Continues an answer that was kept and that a server is still to decide, or that goes on.

        Args:
            committed: its tokens; `text`: what they have added to the committed text.
            waiting: provisional tokens.
            decided_from: how many tokens were committed when it ended without the server.
        """
        self._stream.restore(committed, text)
        self.committed, self.tokens = text, len(committed)
        self.waiting = list(waiting)
        self._look_ahead()
        if waiting:
            self.provisional += self._ahead.finish(is_cut=True)
        self.ended = self.committed + self.provisional
        self._decided = len(committed) - decided_from

    def apply(self, event: Event) -> str:
        """Applies an event; what it adds to the committed text. `Earlier` and `Settled` must be of this answer."""
        piece = ""
        if isinstance(event, Earlier):
            event = event.event
        if isinstance(event, Ended | Settled):
            self.finish = event.finish
        if isinstance(event, Committed):
            if self._decided is not None:
                self._decided += len(event.tokens)
            self.tokens += len(event.tokens)
            piece = self._stream.push(event.tokens)
            del self.waiting[: event.confirmed]
            self._look_ahead()
        elif isinstance(event, Provisional):
            if not self.waiting:
                self._ahead = self._stream.fork()
            self.waiting += event.tokens
            self.provisional += self._ahead.push(event.tokens)
        elif isinstance(event, Corrected):
            self.waiting.clear()
            self._look_ahead()
        elif isinstance(event, Ended):
            piece = self._end(event)
        elif isinstance(event, Settled):
            self.waiting.clear()
            self.provisional = ""
            is_cut = event.finish not in ENDED_BY_TEXT
            new = event.tokens[self._decided or 0 :]
            self.tokens += len(new)
            piece = self._stream.push(new) + self._stream.finish(is_cut=is_cut)
        self.committed += piece
        return piece

    def update(self, event: Event, number: int, piece: str, figures: Figures | None = None) -> Update:
        """What surfaces are told of an event that was applied.

        Args:
            number: of the answer in its conversation.
            piece: what the event has added to the committed text.
            figures: with `Ended`, what the answer cost.
        """
        if isinstance(event, HeldBack | Refused):
            return Update(event, number)
        if isinstance(event, Settled):
            return Update(event, number, text=self.committed)
        happening = event.event if isinstance(event, Earlier) else event
        return Update(happening, number, piece, self.provisional, len(self.waiting), figures=figures)

    def break_off(self) -> str:
        """Ends the answer with what is committed of it; the rest of that text. Provisional text is withdrawn."""
        self.waiting.clear()
        self.provisional = ""
        piece = self._stream.finish(is_cut=True)
        self.committed += piece
        return piece

    def _end(self, event: Ended) -> str:
        is_cut = event.finish not in ENDED_BY_TEXT
        if event.provisional:
            self._decided = 0
            if not self.waiting:
                self._ahead = self._stream.fork()
            self.provisional += self._ahead.finish(is_cut=is_cut)
            self.ended = self.committed + self.provisional
            return ""
        self.provisional = ""
        return self._stream.finish(is_cut=is_cut)

    def _look_ahead(self) -> None:
        """Decodes the provisional tokens after the committed text."""
        self.provisional = ""
        if self.waiting:
            self._ahead = self._stream.fork()
            self.provisional = self._ahead.push(self.waiting)

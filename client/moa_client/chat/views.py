"""How an answer is shown: on a terminal, on a pipe, or as lines of JSON.

A view receives each event after the transcript has applied it. Views write; the pure `display` and `json_events` decide
what.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from moa_shared.text.plain_text import without_controls

from moa_client.chat.json_events import event_line
from moa_client.chat.keys import has_keys, typed_ahead
from moa_client.chat.messages import (
    HELD_BACK_WORDS,
    UNREAD_WORDS,
    link_words,
    notice_words,
    settled_remark,
    status_line,
    unchecked,
    unverified_words,
)
from moa_client.conversation.events import (
    Earlier,
    Ended,
    Event,
    HeldBack,
    LinkChanged,
    LinkState,
    Notice,
    Refused,
    ServerChanged,
    Settled,
)
from moa_client.conversation.transcript import Transcript

if TYPE_CHECKING:
    from moa_client.chat.display.page import Page
    from moa_client.engine.engine import ClientEngine

Write = Callable[[str], None]


class View(Protocol):
    """Shows one answer."""

    def begin(self) -> None:
        """Called when the question has been asked."""

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        """Shows an event; `piece` is what it adds to the committed text."""

    def show_earlier(self, event: Earlier | Settled | Refused, earlier: Transcript) -> None:
        """Shows what was decided about an earlier answer while this one is undecided."""

    def end(self, piece: str, transcript: Transcript) -> None:
        """Called when nothing more comes; `piece` is the part of a broken answer's committed text not shown yet."""


class TerminalView:
    """Shows an answer on a page, with a status line below it.

    Args:
        status: the newest status line, given why the link is as it is, and the provisional text.
    """

    def __init__(self, page: Page, status: Callable[[str, str], str]) -> None:
        self._page = page
        self._status = status
        self._reason = ""
        self._remarks = ""  # below the answer
        self._is_open = False  # it has ended, and a server may still change it

    def begin(self) -> None:
        self._page.begin(self._status("", ""))

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        if isinstance(event, LinkChanged):
            self._reason = event.reason if event.state is LinkState.OFFLINE else ""
        elif isinstance(event, Notice):
            self._remarks += notice_words(event) + "\n"
            if isinstance(event, ServerChanged) and event.what == "model":
                self._reason = "another model is served there"
        elif isinstance(event, Ended):
            self._is_open = event.provisional
        elif isinstance(event, Settled):
            self._is_open = False
        self._page.show(transcript, self._status(self._reason, transcript.provisional))

    def show_earlier(self, event: Earlier | Settled | Refused, earlier: Transcript) -> None:
        self._page.show_earlier(event, earlier)

    def end(self, piece: str, transcript: Transcript) -> None:
        self._page.end(transcript, is_open=self._is_open)
        if self._remarks:
            self._page.say(self._remarks.rstrip("\n"))


class PipeView:
    """Writes only committed text; text still unverified at the end is written last, if asked for.

    Args:
        remark: takes what is not part of the answer.
        unverified: write text that no server has verified.
    """

    def __init__(self, write: Write, remark: Write, *, unverified: bool) -> None:
        self._write = write
        self._remark = remark
        self._unverified = unverified

    def begin(self) -> None:
        """Nothing to show yet."""

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        if piece:
            self._write(piece)
        if isinstance(event, LinkChanged) and (words := link_words(event)):
            self._remark(words)
        elif isinstance(event, Notice):
            self._remark(notice_words(event))
        elif isinstance(event, HeldBack):
            self._remark(UNREAD_WORDS if event.unread else HELD_BACK_WORDS)

    def show_earlier(self, event: Earlier | Settled | Refused, earlier: Transcript) -> None:
        if words := settled_remark(event, earlier):
            self._remark(words)

    def end(self, piece: str, transcript: Transcript) -> None:
        shown = transcript.committed + (transcript.provisional if self._unverified else "")
        self._write((piece + transcript.provisional if self._unverified else piece) + ("\n" if shown else ""))
        if not transcript.waiting:
            return
        self._remark(unverified_words(len(transcript.waiting), is_printed=self._unverified))


class JsonView:
    """Writes one line for each event."""

    def __init__(self, write: Write, engine: ClientEngine) -> None:
        self._write = write
        self._engine = engine

    def begin(self) -> None:
        """Writes nothing; the first event says more."""

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        text = transcript.committed if isinstance(event, Settled) else piece
        if line := event_line(event, text, transcript.provisional, self._engine.figures):
            self._write(line + "\n")

    def show_earlier(self, event: Earlier | Settled | Refused, earlier: Transcript) -> None:
        if line := event_line(event, earlier.committed, "", self._engine.figures):
            self._write(line + "\n")

    def end(self, piece: str, transcript: Transcript) -> None:
        """Writes nothing; `Ended`, or the error, was the last line."""


def make_view(
    engine: ClientEngine,
    write: Write,
    remark: Write,
    *,
    json_events: bool,
    unverified: bool,
    page: Page | None = None,
    unsettled: Sequence[Transcript] = (),
) -> View:
    """Makes the view for standard output.

    Args:
        unverified: where text cannot be taken back, write at the end what no server has verified.
        page: a terminal that can move its cursor.
        unsettled: earlier answers that no server has decided.
    """
    if json_events:
        return JsonView(write, engine)
    if page is None:
        if sys.stdout.isatty():  # it claims no abilities, but may act on escape sequences anyway
            return PipeView(lambda text: write(without_controls(text)), remark, unverified=unverified)
        return PipeView(write, remark, unverified=unverified)

    def status(reason: str, provisional: str) -> str:
        return status_line(
            engine.status,
            unchecked([*(earlier.provisional for earlier in unsettled), provisional], len(unsettled)),
            reason,
            typed_ahead(),
            holds_back=engine.is_holding_back,
            has_keys=has_keys(),
        )

    return TerminalView(page, status)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """The terminal's own columns and rows, not COLUMNS and LINES, which often belong to another terminal."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    if not size.columns or not size.lines:  # the terminal does not know its size
        size = shutil.get_terminal_size()
    return max(2, size.columns), max(2, size.lines)

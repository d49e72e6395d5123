"""How an answer is shown: on a terminal, on a pipe, or as lines of JSON.

A view receives each event after the transcript has applied it. Views write; the pure `Screen` and `json_events` decide
what.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TextIO

from moa_shared.text.plain_text import without_controls

from moa_client.chat.json_events import event_line
from moa_client.chat.keys import typed_ahead
from moa_client.chat.messages import (
    HELD_BACK_WORDS,
    link_words,
    notice_words,
    settled_words,
    status_line,
    unverified_words,
)
from moa_client.conversation.events import (
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
    from moa_client.chat.screen import Screen
    from moa_client.engine.engine import ClientEngine

Write = Callable[[str], None]


class View(Protocol):
    """Shows one answer."""

    def begin(self) -> None:
        """Called when the question has been asked."""

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        """Shows an event; `piece` is what it adds to the committed text."""

    def show_settled(self, event: Settled | Refused, earlier: Transcript) -> None:
        """Shows that an earlier answer was decided or refused while this one is undecided."""

    def end(self, piece: str, transcript: Transcript) -> None:
        """Called when nothing more comes; `piece` is the part of a broken answer's committed text not shown yet."""


class TerminalView:
    """Shows provisional text dim, replaces it in place, and draws a status line below.

    Args:
        screen: for the terminal as it is now.
        status: the newest status line, given why the link is as it is, and whether guesses are shown.
        size: the terminal's columns and rows.
    """

    def __init__(
        self, screen: Screen, status: Callable[[str, bool], str], size: Callable[[], tuple[int, int]], write: Write
    ) -> None:
        self._screen = screen
        self._status = status
        self._size = size
        self._write = write
        self._reason = ""
        self._remarks = ""  # below the answer

    def begin(self) -> None:
        self._write(self._screen.update("", "", self._status("", False)))

    def show(self, event: Event, piece: str, transcript: Transcript) -> None:
        if isinstance(event, LinkChanged):
            self._reason = event.reason if event.state is LinkState.OFFLINE else ""
        elif isinstance(event, Notice):
            self._remarks += notice_words(event) + "\n"
            if isinstance(event, ServerChanged) and event.what == "model":
                self._reason = "another model is served there"
        drawn = self._screen.resize(*self._size())
        status = self._status(self._reason, bool(transcript.provisional))
        drawn += self._screen.update(piece, transcript.provisional, status)
        if drawn:
            self._write(drawn)

    def show_settled(self, event: Settled | Refused, earlier: Transcript) -> None:
        """Writes above this answer, which has no committed text yet; provisional text is redrawn below."""
        drawn = self._screen.resize(*self._size())
        self._write(drawn + self._screen.interject(settled_words(event, earlier)))

    def end(self, piece: str, transcript: Transcript) -> None:
        self._write(self._screen.update(piece, transcript.provisional, "") + self._screen.finish() + self._remarks)


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
            self._remark(HELD_BACK_WORDS)

    def show_settled(self, event: Settled | Refused, earlier: Transcript) -> None:
        self._remark(settled_words(event, earlier))

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
        self._write(event_line(event, text, transcript.provisional, self._engine.figures) + "\n")

    def show_settled(self, event: Settled | Refused, earlier: Transcript) -> None:
        self._write(event_line(event, earlier.committed, "", self._engine.figures) + "\n")

    def end(self, piece: str, transcript: Transcript) -> None:
        """Writes nothing; `Ended`, or the error, was the last line."""


def make_view(engine: ClientEngine, write: Write, remark: Write, *, json_events: bool, unverified: bool) -> View:
    """Makes the view for standard output: a terminal that can move its cursor, or anything else.

    Args:
        unverified: where text cannot be taken back, write at the end what no server has verified.
    """
    if json_events:
        return JsonView(write, engine)
    if not sys.stdout.isatty():
        return PipeView(write, remark, unverified=unverified)
    if os.environ.get("TERM", "dumb") == "dumb":  # claims no abilities; it may act on escape sequences anyway
        return PipeView(lambda text: write(without_controls(text)), remark, unverified=unverified)
    from moa_client.chat.screen import Screen

    def status(reason: str, shows_guesses: bool) -> str:
        return status_line(
            engine.status,
            engine.unsettled,
            reason,
            typed_ahead(),
            shows_guesses=shows_guesses,
            holds_back=engine.is_holding_back,
        )

    styled = not os.environ.get("NO_COLOR")

    def size() -> tuple[int, int]:
        return terminal_size(sys.stdout)

    reflows = "XTERM_VERSION" not in os.environ  # xterm cuts lines off where others reflow them
    return TerminalView(Screen(*size(), styled=styled, reflows=reflows), status, size, write)


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """The terminal's own columns and rows, not COLUMNS and LINES, which often belong to another terminal."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    if not size.columns or not size.lines:  # the terminal does not know its size
        size = shutil.get_terminal_size()
    return max(2, size.columns), max(2, size.lines)

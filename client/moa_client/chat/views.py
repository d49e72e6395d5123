"""How an answer is shown: on a terminal, on a pipe, or as lines of JSON.

A view receives each update after the answer's text has applied it. Views write; the pure `display` and `json_events`
decide what.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from moa_shared.text.plain_text import without_controls

from moa_client.chat.json_events import earlier_line, event_line
from moa_client.chat.keys import has_keys, typed_ahead
from moa_client.chat.messages import (
    HELD_BACK_WORDS,
    NOT_SERVED,
    UNREAD_WORDS,
    call_words,
    countdown_words,
    error_words,
    link_words,
    not_kept_words,
    notice_words,
    settled_remark,
    status_line,
    unchecked,
    unverified_words,
)
from moa_client.conversation.events import (
    CallEvent,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    Notice,
    NotKept,
    ServerChanged,
)
from moa_client.conversation.updates import Update

if TYPE_CHECKING:
    from moa_client.chat.display.page import TerminalPage
    from moa_client.conversation.answer_figures import LinkStatus
    from moa_client.conversation.answer_text import AnswerText

Write = Callable[[str], None]
COUNT_SECONDS = 1.0  # between two steps of a countdown


class View(Protocol):
    """Shows one answer."""

    def begin(self) -> None:
        """Called when the question has been asked."""

    def show(self, update: Update, text: AnswerText) -> None:
        """Shows an update about the answer, or about none."""

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        """Shows what was decided about an earlier answer while this one is undecided."""

    def end(self, text: AnswerText) -> None:
        """Called when nothing more comes; `text` may hold the last committed piece of a broken answer."""


class TerminalView:
    """Shows an answer on a page, with a status line below it.

    Args:
        status: the newest status line, given why the link is as it is, and the provisional text.
        clock: in seconds.
    """

    def __init__(
        self, page: TerminalPage, status: Callable[[str, str], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._page = page
        self._status = status
        self._clock = clock
        self._reason = ""
        self._waits_until = 0.0  # if the reason is that the server wants it so
        self._timer: asyncio.TimerHandle | None = None
        self._remarks = ""  # below the answer

    def begin(self) -> None:
        self._page.begin(self._status("", ""))

    def show(self, update: Update, text: AnswerText) -> None:
        event = update.event
        if isinstance(event, CallEvent):
            self._page.say(call_words(event))
            return
        if isinstance(event, LinkChanged):
            self._reason = event.reason if event.state in NOT_SERVED else ""
            self._waits_until = self._clock() + event.wait_seconds if event.state is LinkState.WAITING else 0.0
        elif isinstance(event, Notice):
            self._remarks += notice_words(event) + "\n"
            if isinstance(event, ServerChanged) and event.what == "model":
                self._reason = "another model is served there"
        elif isinstance(event, NotKept):
            self._remarks += not_kept_words(event) + "\n"
        elif isinstance(event, Failed):
            self._remarks += error_words(event.error) + "\n"
        self._draw(text)

    def _draw(self, text: AnswerText) -> None:
        """Shows the answer and the status line; a wait is counted down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reason = self._reason
        if self._waits_until:
            left = self._waits_until - self._clock()
            reason = countdown_words(reason, left)
            if left > 0.0:
                self._timer = asyncio.get_running_loop().call_later(COUNT_SECONDS, self._draw, text)
        self._page.show(text, self._status(reason, text.provisional))

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        self._page.show_earlier(update, earlier)

    def end(self, text: AnswerText) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._page.end(text, is_open=text.is_unsettled)
        if self._remarks:
            self._page.say(self._remarks.rstrip("\n"))
            self._remarks = ""


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
        self._written = 0  # characters of committed text
        self._has_waited = False

    def begin(self) -> None:
        self._written = 0

    def show(self, update: Update, text: AnswerText) -> None:
        event = update.event
        if isinstance(event, CallEvent):
            self._remark(call_words(event))
            return
        if piece := self._piece(text):
            self._write(piece)
        if isinstance(event, LinkChanged) and (words := link_words(event)):
            if event.state is not LinkState.WAITING or not self._has_waited:  # which may come every few seconds
                self._remark(words)
            self._has_waited |= event.state is LinkState.WAITING
        elif isinstance(event, Notice):
            self._remark(notice_words(event))
        elif isinstance(event, NotKept):
            self._remark(not_kept_words(event))
        elif isinstance(event, Failed):
            self._remark(error_words(event.error))
        elif isinstance(event, HeldBack):
            self._remark(UNREAD_WORDS if event.unread else HELD_BACK_WORDS)

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        if words := settled_remark(update.event, earlier):
            self._remark(words)

    def end(self, text: AnswerText) -> None:
        shown = text.unseen + (text.provisional if self._unverified else "")
        piece = self._piece(text)
        self._write((piece + text.provisional if self._unverified else piece) + ("\n" if shown else ""))
        if text.waiting:
            self._remark(unverified_words(len(text.waiting), is_printed=self._unverified))

    def _piece(self, text: AnswerText) -> str:
        piece = text.committed[max(self._written, text.seen) :]
        self._written = len(text.committed)
        return piece


class JsonView:
    """Writes one line for each update."""

    def __init__(self, write: Write) -> None:
        self._write = write

    def begin(self) -> None:
        """Writes nothing; the first update says more."""

    def show(self, update: Update, text: AnswerText) -> None:
        if line := event_line(update, text):
            self._write(line + "\n")

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        if line := earlier_line(update, earlier):
            self._write(line + "\n")

    def end(self, text: AnswerText) -> None:
        """Writes nothing; `Ended`, or the error, was the last line."""


def make_view(
    link_status: Callable[[], LinkStatus],
    write: Write,
    remark: Write,
    *,
    json_events: bool,
    unverified: bool,
    page: TerminalPage | None = None,
    unsettled: Callable[[], Sequence[AnswerText]] = list,
) -> View:
    """Makes the view for standard output.

    Args:
        link_status: the newest one.
        unverified: where text cannot be taken back, write at the end what no server has verified.
        page: a terminal that can move its cursor.
        unsettled: earlier answers that no server has decided.
    """
    if json_events:
        return JsonView(write)
    if page is None:
        if sys.stdout.isatty():  # it claims no abilities, but may act on escape sequences anyway
            return PipeView(lambda text: write(without_controls(text)), remark, unverified=unverified)
        return PipeView(write, remark, unverified=unverified)

    def status(reason: str, provisional: str) -> str:
        earlier = unsettled()
        return status_line(
            link_status(),
            unchecked([*(text.provisional for text in earlier), provisional], len(earlier)),
            reason,
            typed_ahead(),
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

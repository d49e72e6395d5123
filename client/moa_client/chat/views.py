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

from moa_client.chat import messages
from moa_client.chat.folding import UNFOLDED, Folding
from moa_client.chat.json_events import earlier_line, event_line
from moa_client.chat.keys import has_keys, typed_ahead
from moa_client.conversation import events
from moa_client.conversation.answer_text import Update, last_word

if TYPE_CHECKING:
    from moa_client.chat.display.page import TerminalPage
    from moa_client.conversation.answer_text import AnswerText
    from moa_client.conversation.figures import LinkStatus

Write = Callable[[str], None]
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]  # calls something in so many seconds
COUNT_SECONDS = 1.0  # between two steps of a countdown
OUTAGE_SECONDS = 1.0  # a shorter one is over before a reader would know what to do about it
MOST_HELD = 40  # characters of a word whose end has not come


class View(Protocol):
    """Shows one answer."""

    def begin(self) -> None: ...  # called when the question has been asked
    def show(self, update: Update, text: AnswerText) -> None: ...  # shows an update about the answer, or about none
    # Shows what was decided about an earlier answer while this one is undecided.
    def show_earlier(self, update: Update, earlier: AnswerText) -> None: ...
    # Called when nothing more comes; `text` may hold the last committed piece of a broken answer.
    def end(self, text: AnswerText) -> None: ...


class TerminalView:
    """Shows an answer on a page, with a status line below it.

    `status` makes the newest status line, given why the link is as it is and the provisional text.
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
        if isinstance(event, events.CallEvent):
            self._page.say(messages.event_words(event))
            return
        if isinstance(event, events.LinkChanged):
            self._reason = event.reason if event.state in messages.NOT_SERVED else ""
            self._waits_until = self._clock() + event.wait_seconds if event.state is events.LinkState.WAITING else 0.0
        elif not isinstance(event, events.HeldBack) and (words := messages.event_words(event)):
            self._remarks += words + "\n"
            if isinstance(event, events.ServerChanged) and event.what == "model":
                self._reason = "another model is served there"
        self._draw(text)

    def _draw(self, text: AnswerText) -> None:
        """Shows the answer and the status line; a wait is counted down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        reason = self._reason
        if self._waits_until:
            left = self._waits_until - self._clock()
            reason = messages.countdown_words(reason, left)
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


def _later(seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, call)


class PipeView:
    """Writes only committed text; text still unverified at the end is written last, if asked for.

    Text is written in whole words: both streams may be one screen. An outage that is over in a moment is not told.

    `remark`: takes what is not part of the answer; `unverified`: write text that no server has verified.
    """

    def __init__(self, write: Write, remark: Write, *, unverified: bool, later: Later = _later) -> None:
        self._write = write
        self._remark = remark
        self._unverified = unverified
        self._later = later
        self._written = 0  # characters of committed text
        self._held = ""  # of these, a word whose end has not come
        self._has_waited = False
        self._outage: list[str] = []  # what is to be said of it if it lasts
        self._timer: asyncio.TimerHandle | None = None  # until it has

    def begin(self) -> None:
        self._written = 0

    def show(self, update: Update, text: AnswerText) -> None:
        event = update.event
        words = messages.event_words(event)
        if isinstance(event, events.CallEvent):
            self._remark(words)
            return
        if piece := self._piece(text):
            word = last_word(piece)
            self._held = word if len(word) <= MOST_HELD else ""
            if whole := piece.removesuffix(self._held):
                self._write(whole)
        if isinstance(event, events.LinkChanged):
            self._show_link(event, words)
        elif isinstance(event, events.HeldBack):
            self._say_of_outage(words)
        elif words:
            self._remark(words)

    def _show_link(self, event: events.LinkChanged, words: str) -> None:
        was_short = self._timer is not None
        if event.state is not events.LinkState.OFFLINE:
            self._end_outage()
        if event.state is events.LinkState.OFFLINE:
            self._timer = self._timer or self._later(OUTAGE_SECONDS, self._tell_outage)
            self._say_of_outage(words)
        elif event.state is events.LinkState.WAITING:
            if not self._has_waited:  # it may come every few seconds
                self._remark(words)
            self._has_waited = True
        elif words and not was_short:
            self._remark(words)

    def _say_of_outage(self, words: str) -> None:
        if self._timer is None:
            self._remark(words)
        else:
            self._outage.append(words)

    def _tell_outage(self) -> None:
        told, self._outage = self._outage, []
        self._end_outage()
        for words in told:
            self._remark(words)

    def _end_outage(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._outage = None, []

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        if words := messages.settled_remark(update.event, earlier):
            self._remark(words)

    def end(self, text: AnswerText) -> None:
        if text.waiting or text.is_unsettled:
            self._tell_outage()
        self._end_outage()
        shown = text.unseen + (text.provisional if self._unverified else "")
        piece = self._piece(text)
        self._write((piece + text.provisional if self._unverified else piece) + ("\n" if shown else ""))
        if text.waiting:
            self._remark(messages.unverified_words(len(text.waiting), is_printed=self._unverified))

    def _piece(self, text: AnswerText) -> str:
        piece = self._held + text.committed[max(self._written, text.seen) :]
        self._written, self._held = len(text.committed), ""
        return piece


class FoldingView:
    """Shows answers in another view, with their reasoning as the user wants it."""

    def __init__(self, view: View, folding: Folding) -> None:
        self._view = view
        self._folding = folding
        self.begin = view.begin

    def show(self, update: Update, text: AnswerText) -> None:
        self._view.show(update, self._folding.shown(text))

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        self._view.show_earlier(update, self._folding.shown(earlier))

    def end(self, text: AnswerText) -> None:
        self._view.end(self._folding.shown(text))


class JsonView:
    """Writes one line for each update."""

    def __init__(self, write: Write, folding: Folding = UNFOLDED) -> None:
        self._write = write
        self._folding = folding

    def begin(self) -> None:
        """Writes nothing; the first update says more."""

    def show(self, update: Update, text: AnswerText) -> None:
        if line := event_line(update, text, self._folding.split(text)):
            self._write(line + "\n")

    def show_earlier(self, update: Update, earlier: AnswerText) -> None:
        if line := earlier_line(update, earlier, self._folding.split(earlier)):
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
    folding: Folding = UNFOLDED,
    page: TerminalPage | None = None,
    unsettled: Callable[[], Sequence[AnswerText]] = list,
) -> View:
    """Makes the view for standard output.

    Args:
        unverified: where text cannot be taken back, write at the end what no server has verified.
        page: a terminal that can move its cursor.
        unsettled: earlier answers that no server has decided.
    """
    if json_events:
        return JsonView(write, folding)
    if page is None:
        # It claims no abilities, but may act on escape sequences anyway.
        shown = (lambda text: write(without_controls(text))) if sys.stdout.isatty() else write
        return _folded(PipeView(shown, remark, unverified=unverified), folding)

    def status(reason: str, provisional: str) -> str:
        earlier = [folding.shown(text) for text in unsettled()]
        return messages.thinking_words(folding.thinking_tokens) + messages.status_line(
            link_status(),
            [*(text.provisional for text in earlier), provisional],
            len(earlier),
            reason,
            typed_ahead(),
            has_keys=has_keys(),
        )

    return _folded(TerminalView(page, status), folding)


def _folded(view: View, folding: Folding) -> View:
    return FoldingView(view, folding) if folding.marks is not None else view


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """The terminal's own columns and rows, not COLUMNS and LINES, which often belong to another terminal."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    if not size.columns or not size.lines:  # the terminal does not know its size
        size = shutil.get_terminal_size()
    return max(2, size.columns), max(2, size.lines)

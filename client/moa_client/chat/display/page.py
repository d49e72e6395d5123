"""The terminal of a chat: what the screen decides is written at once, or above the prompt while there is one.

State: the screen, the answers on it that a server has not decided, the lines below the answer, and a timer for marks
that go.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from moa_client.chat.display.screen import Screen
from moa_client.chat.messages import changed_words, first_cut_words, settled_words, unsure_words
from moa_client.conversation.events import Refused, Settled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from moa_client.chat.display.answer_block import AnswerBlock
    from moa_client.conversation.answer_text import AnswerText, Update


class Prompt(Protocol):
    """A prompt below everything else."""

    @property
    def is_typed_into(self) -> bool: ...  # whether the user is in the middle of a line: nothing may move it
    def request(self) -> None: ...  # asks for `TerminalPage.draw` as soon as it can be written above the prompt


class _Elsewhere:
    """In place of a prompt while another program has the terminal."""

    is_typed_into = True

    def request(self) -> None:
        """Draws nothing."""


class TerminalPage:
    """Shows answers and remarks on one terminal. `screen`: for the terminal as it is now; `clock`: in seconds."""

    def __init__(
        self,
        screen: Screen,
        size: Callable[[], tuple[int, int]],
        write: Callable[[str], None],
        *,
        styled: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen = screen
        self._size = size
        self._write = write
        self._styled = styled
        self._clock = clock
        self._footer: Sequence[str] = ()
        self._earlier: dict[AnswerText, AnswerBlock] = {}
        self._live: AnswerBlock | None = None
        self._prompt: Prompt | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._notes: list[str] = []  # below the answer that is written now
        self._has_told = self._has_told_unsure = False

    def begin(self, status: str) -> None:
        self._live = self.screen.begin()
        self._footer = (status,)
        self._paint()

    def show(self, text: AnswerText, status: str) -> None:
        if self._live is None:
            return
        self._live.update(self._clock(), text.unseen, text.provisional, text.likely)
        if text.provisional.strip() and not self._has_told:
            self._has_told = True
            self._notes.append(first_cut_words(styled=self._styled))
        if text.likely < len(text.provisional) and not self._has_told_unsure:
            self._has_told_unsure = True
            self._notes.append(unsure_words(styled=self._styled))
        self._footer = (*self._notes, status)
        self._paint()

    def end(self, text: AnswerText, *, is_open: bool) -> None:
        """The answer is over for now. `is_open`: a server may still change it."""
        if self._live is None:
            return
        self._live.update(self._clock(), text.unseen, text.provisional, text.likely)
        self.screen.end(is_verified=not text.provisional and not is_open)
        if is_open:
            self._earlier[text] = self._live
        elif text.provisional:
            self._live.close(is_verified=False)
        self._live, self._footer = None, ()
        for note in self._notes:
            self.screen.say(note)
        self._notes.clear()
        self._paint()

    def say(self, text: str) -> None:
        self.screen.say(text)
        self._paint()

    def show_earlier(self, update: Update, text: AnswerText) -> None:
        """Shows what has been decided about an answer that ended without the server, in its place if that can be."""
        event = update.event
        block, now = self._earlier.get(text), self._clock()
        committed, provisional = text.unseen, text.provisional
        may_move = self._prompt is None or not self._prompt.is_typed_into
        in_place = (
            block is not None
            and block.takes(committed, provisional)
            and (may_move or block.is_same(committed, provisional))
        )
        if block is not None and in_place and not isinstance(event, Refused):
            block.update(now, committed, provisional, text.likely)
        if isinstance(event, Settled | Refused):
            self._earlier.pop(text, None)
            shown = "" if block is None else block.shown
            if block is not None:
                block.close(is_verified=False)
            words = settled_words(event, text)
            if isinstance(event, Refused) or in_place:
                self.screen.say(words)
            else:
                lead, changed = changed_words(event, shown, committed)
                self.screen.say(f"{words} {lead}".rstrip(), now, changed)
        self._paint()

    def forget_earlier(self, texts: Iterable[AnswerText]) -> None:
        """None of these answers of before will be decided any more."""
        for text in texts:
            if (block := self._earlier.pop(text, None)) is not None:
                block.close(is_verified=False)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._write(self.screen.paint(float("inf")))

    @contextmanager
    def below(self, prompt: Prompt) -> Iterator[None]:
        """While the user is asked for a line, everything is drawn above that."""
        self._prompt = prompt
        try:
            yield
        finally:
            self._prompt = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """While another program has the terminal, nothing is drawn; what it leaves is on the screen afterwards."""
        self._prompt = _Elsewhere()
        try:
            yield
        finally:
            self._prompt = None
            self.screen.cut_off()

    def adopt(self, line: str) -> None:
        """Called when the prompt has left a line on the terminal."""
        self.screen.adopt(line)
        self._paint()

    def draw(self) -> str:
        """What to write to show everything as it is now, from where the text ends."""
        drawn = self.screen.resize(*self._size()) + self.screen.paint(self._clock(), self._footer)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (due := self.screen.due) is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due - self._clock()), self._paint)
        return drawn

    def _paint(self) -> None:
        if self._prompt is not None:
            self._prompt.request()
        elif drawn := self.draw():
            self._write(drawn)


def make_page(size: Callable[[], tuple[int, int]], write: Callable[[str], None]) -> TerminalPage | None:
    """A page on standard output; None if that is no terminal that can move its cursor."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    styled = not os.environ.get("NO_COLOR")
    reflows = "XTERM_VERSION" not in os.environ  # xterm cuts lines off where others reflow them
    return TerminalPage(Screen(*size(), styled=styled, reflows=reflows), size, write, styled=styled)

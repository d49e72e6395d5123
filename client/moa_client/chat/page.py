"""The terminal of a chat: what the screen decides is written at once, or above the prompt while there is one.

State: the screen, the answers on it that a server has not decided, the lines below the answer, and a timer for marks
that go.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from moa_client.chat import messages
from moa_client.chat.screen import Block, Screen
from moa_client.chat.views import View, Write
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update


class Prompt(Protocol):
    @property
    def is_typed_into(self) -> bool: ...  # whether the user is in the middle of a line: nothing may move it
    def request(self) -> None: ...  # asks for `TerminalPage.draw` as soon as it can be written above the prompt


class TerminalPage(View):
    """Shows answers and remarks on one terminal, and a status line below the answer that is written now.

    `screen`: for the terminal as it is now. `clock`: in seconds.
    """

    def __init__(
        self,
        screen: Screen,
        size: Callable[[], tuple[int, int]],
        write: Write,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(self._say)
        self.screen = screen
        self._size = size
        self._write = write
        self._clock = clock
        self._footer: Sequence[str] = ()
        self._earlier: dict[int, Block] = {}
        self._live: Block | None = None
        self._prompt: Prompt | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._reason = ""
        self._notes: list[str] = []  # below the answer that is written now
        self._told: set[str] = set()  # notes that are for who sees something for the first time

    def begin(self) -> None:
        self._live, self._reason = self.screen.begin(), ""
        self._footer = (self.status("", None),)
        self._paint()

    def show(self, update: Update, text: AnswerText) -> None:
        event, shown = update.event, self.folding.shown(text)
        if isinstance(event, events.CallEvent):
            self._say(messages.event_words(event))
        elif isinstance(event, events.LinkChanged):
            self._reason = event.reason if event.state in messages.NOT_SERVED else ""
        elif not isinstance(event, events.HeldBack) and (words := messages.event_words(event)):
            self._notes.append(words)
        if self._live is None:
            return
        self._update(self._live, shown)
        is_unsure = shown.likely < len(shown.provisional)
        notes = (messages.FIRST_CUT_WORDS, shown.provisional.strip()), (messages.UNSURE_WORDS, is_unsure)
        for words, is_so in notes:
            if is_so and words not in self._told:
                self._told.add(words)
                self._notes.append(words)
        self._footer = (*self._notes, self.status(self._reason, shown))
        self._paint()

    def end(self, text: AnswerText) -> None:
        shown = self.folding.shown(text)
        if self._live is None:
            return
        self._update(self._live, shown)
        self.screen.end(is_verified=not (shown.provisional or text.is_unsettled))
        if text.is_unsettled:
            self._earlier[text.number] = self._live
        elif shown.provisional:
            self._live.close()
        self._live, self._footer = None, ()
        for note in self._notes:
            self.screen.say(note)
        self._notes.clear()
        self._paint()

    def _update(self, block: Block, shown: AnswerText) -> None:
        block.update(self._clock(), shown.unseen, shown.provisional, shown.likely)

    def _say(self, text: str) -> None:
        self.screen.say(text)
        self._paint()

    def show_earlier(self, update: Update, text: AnswerText) -> None:
        """Shows what has been decided about an answer that ended without the server, in its place if that can be."""
        event, shown = update.event, self.folding.shown(text)
        block, given = self._earlier.get(text.number), (shown.unseen, shown.provisional)
        may_move = self._prompt is None or not self._prompt.is_typed_into
        in_place = block is not None and block.takes(*given) and (may_move or block.is_same(*given))
        if block is not None and in_place and not isinstance(event, events.Refused):
            self._update(block, shown)
        if isinstance(event, events.Settled | events.Refused):
            before = "" if block is None else block.text
            self._close_earlier(text)
            if isinstance(event, events.Refused) or in_place:
                self.screen.say(messages.settled_words(event, shown))
            else:
                words, changed = messages.changed_words(event, shown, before, shown.unseen)
                self.screen.say(words, self._clock(), changed)
        self._paint()

    def forget(self, texts: Iterable[AnswerText]) -> None:
        for text in texts:
            self._close_earlier(text)
        super().forget(texts)

    def _close_earlier(self, text: AnswerText) -> None:
        if (block := self._earlier.pop(text.number, None)) is not None:
            block.close()

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


def make_page(size: Callable[[], tuple[int, int]], write: Write) -> TerminalPage | None:
    """A page on standard output; None if that is no terminal that can move its cursor."""
    if not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return None
    reflows = "XTERM_VERSION" not in os.environ  # xterm cuts lines off where others reflow them
    return TerminalPage(Screen(*size(), reflows=reflows), size, write)

"""The interactive terminal: reads questions over prompt_toolkit, and shows answers above them.

Commands are completed by Tab; earlier questions come back by the arrow keys and Ctrl-R, from a file of the user's alone
if they are kept. What of that cannot be read or written is left out: it is no reason to end a chat.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path

from moa_shared.plain_text import marked_text
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.renderer import HeightIsUnknownError
from prompt_toolkit.styles import Style

from moa_client.chat.chat import Chat
from moa_client.chat.commands import NAMES, SETTABLE, CommandHandler
from moa_client.chat.keys import blocking_afterwards, quiet_keys
from moa_client.chat.page import TerminalPage
from moa_client.chat.screen import fit

REDRAW_S = 0.1  # as often as a reader follows
MOST_BYTES = 1 << 20  # of the questions of before, some thousand: older ones are dropped with a new file
QUOTES = '"""'


BINDINGS = KeyBindings()


@BINDINGS.add("escape", "enter")
def insert_new_line(event: KeyPressEvent) -> None:
    """By Alt-Enter; Enter sends."""
    event.current_buffer.insert_text("\n")


class CommandCompleter(Completer):
    """Completes the word before the cursor: a command, what it sets, or the path of a file."""

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or text.startswith("//") or "\n" in document.text:
            return
        name, space, rest = text[1:].partition(" ")
        if space and name == "file":
            yield from PathCompleter(expanduser=True).get_completions(Document(rest, len(rest)), complete_event)
        elif not space or name == "set":
            begun, known = (rest, SETTABLE) if space else (name, NAMES)
            yield from (Completion(word, -len(begun)) for word in known if word.startswith(begun))


class _KeptQuestions(FileHistory):
    def store_string(self, string: str) -> None:
        with suppress(OSError):
            super().store_string(marked_text(string))


def open_questions(path: Path | None) -> History:
    """The questions of before. `path`: where they are kept; None: nowhere."""
    if path is not None:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.exists() and path.stat().st_size > MOST_BYTES:
                path.unlink()
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            return _KeptQuestions(str(path))
    return InMemoryHistory()


class AbovePrompt:
    """Draws a page above a prompt, a few times a second at most."""

    def __init__(self, page: TerminalPage, session: PromptSession[str]) -> None:
        self._page = page
        self._app = session.app
        self._buffer = session.default_buffer
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_typed_into(self) -> bool:
        return bool(self._buffer.text)

    def request(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(self._due, loop.time()), self._draw)

    def on_rendered(self, _: object) -> None:
        """The prompt has been drawn: it may have moved everything up."""
        if (drawn := self._app.renderer.last_rendered_screen) is not None:
            self._page.screen.leave_room(drawn.height)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _draw(self) -> None:
        renderer, output = self._app.renderer, self._app.output
        self._due = asyncio.get_running_loop().time() + REDRAW_S
        self._timer = None
        if not self._app.is_running or renderer.waiting_for_cpr:  # where the prompt is will be known in a moment
            self.request()
            return
        try:
            above: int | None = renderer.rows_above_layout
        except HeightIsUnknownError:
            above = None
        before = self._page.screen.descended
        renderer.erase(leave_alternate_screen=False)
        output.write_raw(self._page.draw())
        output.flush()
        if above is not None:  # otherwise the line at the bottom would jump up and down again
            row = above + self._page.screen.descended - before
            renderer.report_absolute_cursor_row(1 + max(0, min(row, output.get_size().rows - 1)))
        self._app.invalidate()


async def converse(chat: Chat, take_typed: Callable[[], str]) -> None:
    """Reads questions and shows answers until the user leaves.

    `take_typed`: what was typed for the next line before a question about a call.
    """
    import platformdirs

    chat.greet()
    path = platformdirs.user_state_path("moa", appauthor=False) / "questions" if chat.settings.history else None
    session: PromptSession[str] = PromptSession(
        key_bindings=BINDINGS,
        history=open_questions(path),
        completer=CommandCompleter(),
        complete_while_typing=False,
        reserve_space_for_menu=5,  # rows of completions, while there are some
        # An answer may be piped out while questions are typed: then the prompt belongs on standard error.
        output=create_output(always_prefer_tty=True),
        bottom_toolbar=lambda: fit(chat.status(), session.output.get_size().columns - 1),
        style=Style.from_dict({"bottom-toolbar": "noreverse"}),
    )
    commands, begun = CommandHandler(chat), ""
    # Quiet between an answer and the prompt too: a key that the terminal echoed there would move what is on the screen.
    with quiet_keys():
        while True:
            try:
                line = await _prompt(chat, session, begun)
            except KeyboardInterrupt:
                begun = ""
                continue
            except EOFError:
                return
            if line.startswith(QUOTES):
                chat.say(f"Alt-Enter makes a new line; {QUOTES} does not any more.")
            elif not await commands.on_line(marked_text(line)):  # a terminal may be set to another encoding than UTF-8
                return
            begun = take_typed()


async def _prompt(chat: Chat, session: PromptSession[str], begun: str) -> str:
    """Reads a line from the user, who goes on with what is `begun`; what happens meanwhile is shown above it."""

    async def attend() -> None:
        async with aclosing(chat.attend()) as happenings:
            async for _ in happenings:
                session.app.invalidate()

    with patch_stdout(), _drawn_above(chat, session, mark := "> "), blocking_afterwards():
        attending = asyncio.ensure_future(attend())
        try:
            return await session.prompt_async(mark, default=begun)
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)


@contextmanager
def _drawn_above(chat: Chat, session: PromptSession[str], mark: str) -> Iterator[None]:
    """While a line is read, the page is drawn above it; then the line is part of the page."""
    page = chat.view
    if not isinstance(page, TerminalPage):
        yield
        return
    above = AbovePrompt(page, session)
    session.app.after_render += above.on_rendered
    try:
        with page.below(above):
            yield
    finally:
        session.app.after_render -= above.on_rendered
        above.cancel()
        page.adopt(mark + session.default_buffer.text)

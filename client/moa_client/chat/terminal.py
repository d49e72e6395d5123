"""The interactive terminal: reads questions of one or more lines, over prompt_toolkit, and shows answers above them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import aclosing, contextmanager, nullcontext
from functools import partial

from moa_shared.errors import MoaError
from moa_shared.text.plain_text import marked_text, without_controls
from prompt_toolkit import PromptSession
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output
from prompt_toolkit.patch_stdout import patch_stdout
from prompt_toolkit.renderer import HeightIsUnknownError
from prompt_toolkit.styles import Style

from moa_client.chat.chat import Chat
from moa_client.chat.commands.desktop import edit_text
from moa_client.chat.commands.handler import CommandHandler, kept_names
from moa_client.chat.commands.table import values_of
from moa_client.chat.display.layout import fit
from moa_client.chat.display.page import TerminalPage
from moa_client.chat.input import CommandCompleter, QuestionHistory, default_path
from moa_client.chat.keys import blocking_afterwards, quiet_keys

QUOTES = '"""'
MENU_ROWS = 5  # of completions, while there are some
REDRAW_S = 0.1  # as often as a reader follows
NOT_TEXT = (
    "This line was not sent as UTF-8: what is no text in it is marked \N{REPLACEMENT CHARACTER}. "
    "Correct it, and set your terminal to UTF-8."
)


def key_bindings() -> KeyBindings:
    """Alt-Enter inserts a new line; Enter sends."""
    bindings = KeyBindings()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class Lines:
    """Joins lines that belong together. Pure."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._block = False

    @property
    def unfinished(self) -> bool:
        return bool(self._parts) or self._block

    def push(self, line: str) -> str | None:
        """Adds a typed line; returns the whole question once it is complete."""
        if self._block:
            if line.rstrip().endswith(QUOTES):
                self._parts.append(line.rstrip().removesuffix(QUOTES))
                return self._take()
            self._parts.append(line)
            return None
        if not self._parts and line.lstrip().startswith(QUOTES):
            rest = line.lstrip().removeprefix(QUOTES)
            if rest.rstrip().endswith(QUOTES):
                return rest.rstrip().removesuffix(QUOTES)
            self._block = True
            if rest:
                self._parts.append(rest)
            return None
        if line.endswith("\\"):
            self._parts.append(line[:-1])
            return None
        self._parts.append(line)
        return self._take()

    def clear(self) -> None:
        self._parts, self._block = [], False

    def _take(self) -> str:
        text = "\n".join(self._parts).strip("\n")
        self.clear()
        return text


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


def _values(chat: Chat, name: str, before: tuple[str, ...]) -> Iterable[str]:
    """What may be typed next, of a command's name and what follows it already."""
    return kept_names(chat) if name == "load" and not before else values_of(name, before)


async def converse(chat: Chat) -> None:
    """Reads questions and shows answers until the user leaves."""
    chat.greet()

    def status() -> str:
        return fit(chat.status, session.output.get_size().columns - 1)

    # An answer may be piped out while questions are typed: then the prompt belongs on standard error.
    history = QuestionHistory(default_path() if chat.settings.history else None)
    session: PromptSession[str] = PromptSession(
        key_bindings=key_bindings(),
        history=history,
        completer=CommandCompleter(partial(_values, chat)),
        complete_while_typing=False,
        reserve_space_for_menu=MENU_ROWS,
        output=create_output(always_prefer_tty=True),
        bottom_toolbar=status,
        style=Style.from_dict({"bottom-toolbar": "noreverse"}),
    )
    commands, lines, begun_line = CommandHandler(chat), Lines(), ""
    # Quiet between an answer and the prompt too: a key that the terminal echoed there would move what is on the screen.
    with quiet_keys() as terminal:
        while True:
            try:
                line = await _prompt(chat, session, "... " if lines.unfinished else "> ", begun_line)
            except KeyboardInterrupt:
                lines.clear()
                begun_line = ""
                continue
            except EOFError:
                return
            begun_line = marked_text(line)
            if begun_line != line:
                chat.say(NOT_TEXT)
                continue
            begun_line = ""
            question = lines.push(line)
            if question is None:
                continue
            history.keep(question)
            if (begun := text_to_edit(question, chat)) is not None:
                with terminal.given_back():
                    question = await _edit(chat, begun)
                history.keep(question)
            with quiet_keys(chat.conversation.write_standalone):
                if not await commands.on_line(question):
                    return
            begun_line = chat.take_typed()


def text_to_edit(line: str, chat: Chat) -> str | None:
    """The text that `/edit` begins with: what follows it, or the last question; None: the line is another one."""
    typed, _, text = line.strip().partition(" ")
    if typed != "/edit":
        return None
    last = chat.last_asked
    return text.strip() or (last.question if last is not None else "")


async def _edit(chat: Chat, text: str) -> str:
    """A question as the user has written it in an editor; empty: none."""
    try:
        with chat.page.hidden() if chat.page is not None else nullcontext():
            question = await edit_text(text)
    except MoaError as error:
        chat.say(f"Error: {error}")
        return ""
    chat.say(f"> {without_controls(question)}" if question else "Nothing is asked.")
    return f"/{question}" if question.startswith("/") else question


async def _prompt(chat: Chat, session: PromptSession[str], mark: str, begun: str) -> str:
    """Reads a line from the user, who goes on with what is `begun`; what happens meanwhile is shown above it."""

    async def attend() -> None:
        async with aclosing(chat.attend()) as happenings:
            async for _ in happenings:
                session.app.invalidate()

    with patch_stdout(), _drawn_above(chat.page, session, mark), blocking_afterwards():
        attending = asyncio.ensure_future(attend())
        try:
            return await session.prompt_async(mark, default=begun)
        finally:
            attending.cancel()
            await asyncio.gather(attending, return_exceptions=True)


@contextmanager
def _drawn_above(page: TerminalPage | None, session: PromptSession[str], mark: str) -> Iterator[None]:
    """While a line is read, the page is drawn above it; then the line is part of the page."""
    if page is None:
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

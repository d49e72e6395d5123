"""Keys of the terminal: kept for the next question while an answer is written, or deciding whether a tool may run.

They are not echoed into the answer, and Ctrl-C acts at once. Invariant: a key that was typed before a question about a
call was shown answers nothing.
"""

import asyncio
import os
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from select import select

from moa_client.chat.messages import not_run_words
from moa_client.conversation.events import CallWanted, Permission

INPUT_FLAGS, LOCAL_FLAGS = 0, 3  # indices into the list from termios
Permit = Callable[[CallWanted], Awaitable[Permission]]  # says whether a call may be run
KEYS = {"y": Permission.ONCE, "n": Permission.DENIED, "a": Permission.ALWAYS}
ASK_WORDS = "  Run it? y: yes, n: no, a: always in this chat"


@contextmanager
def blocking_afterwards() -> Iterator[None]:
    """Standard input is read meanwhile: uvloop then makes it non-blocking, and with it the terminal for all who write
    to it, who would lose what does not fit at once.
    """
    try:
        yield
    finally:
        with suppress(OSError, ValueError):
            os.set_blocking(sys.stdin.fileno(), True)


@contextmanager
def quiet_keys() -> Iterator[None]:
    """On a terminal: turns echo off and delivers keys as they are typed. Ctrl-C acts, and drops none."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield  # a pipe, a file, or closed
        return
    quiet = [*before]
    quiet[INPUT_FLAGS] &= ~termios.ICRNL  # otherwise Return arrives like Enter
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    quiet[LOCAL_FLAGS] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def unasked(allowed: Sequence[str], say: Callable[[str], None]) -> Permit:
    """What is said of calls where nobody can be asked. `say`: tells the user what was not run."""

    async def permit(wanted: CallWanted) -> Permission:
        if is_allowed(wanted, allowed):
            return Permission.ALWAYS
        say(not_run_words(wanted))
        return Permission.DENIED

    return permit


def is_allowed(wanted: CallWanted, allowed: Sequence[str]) -> bool:
    """Whether a tool may be run without being asked for."""
    return f"{wanted.server}/{wanted.tool}" in allowed or "all" in allowed


class KeyPermission:
    """Asks on the terminal, whose keys come as they are typed.

    `allowed`: tools that are run without asking, as SERVER/TOOL, or `all`.
    """

    def __init__(self, terminal: int, allowed: Sequence[str], say: Callable[[str], None]) -> None:
        self._terminal = terminal
        self._allowed = allowed
        self._say = say
        self._typed = b""

    def take_typed(self) -> str:
        """What was typed before a question was shown, for the next line."""
        typed, self._typed = self._typed, b""
        return typed.decode(errors="replace").replace("\r", "\n").rstrip("\n")

    async def __call__(self, wanted: CallWanted) -> Permission:
        if is_allowed(wanted, self._allowed):
            return Permission.ALWAYS
        while select([self._terminal], [], [], 0)[0] and (early := os.read(self._terminal, 4096)):
            self._typed += early
        self._say(ASK_WORDS)
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[Permission] = loop.create_future()

        def on_key() -> None:
            key = os.read(self._terminal, 1).decode(errors="replace").lower()
            if not key:
                decided.set_result(Permission.DENIED)  # the terminal is gone
            elif key in KEYS:
                decided.set_result(KEYS[key])
            if decided.done():
                loop.remove_reader(self._terminal)

        with blocking_afterwards():
            loop.add_reader(self._terminal, on_key)
            try:
                return await decided
            finally:
                loop.remove_reader(self._terminal)

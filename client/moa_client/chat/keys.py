"""Keys of the terminal: kept for the next question while an answer is written, or deciding whether a tool may run.

They are counted, and not echoed into the answer. Two of them act at once: Ctrl-C, and Ctrl-O, which the terminal turns
into SIGQUIT meanwhile. Invariant: a key that was typed before a question about a call was shown answers nothing.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from select import select
from typing import Any

from moa_client.chat.messages import ASK_WORDS, not_run_words
from moa_client.conversation.events import CallWanted, Permission

INPUT_FLAGS, LOCAL_FLAGS, CONTROL = 0, 3, 6  # indices into the list from termios


CTRL_O = b"\x0f"


Modes = list[Any]  # of a terminal, as termios has them


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


class QuietTerminal:
    """A terminal that is quiet."""

    def __init__(self, before: Modes | None = None) -> None:
        self._before = before

    @contextmanager
    def given_back(self) -> Iterator[None]:
        if self._before is None:
            yield
            return
        terminal = sys.stdin.fileno()
        quiet = termios.tcgetattr(terminal)
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSANOW, self._before)
        try:
            yield
        finally:
            with suppress(termios.error):
                termios.tcsetattr(terminal, termios.TCSANOW, quiet)


@contextmanager
def quiet_keys(on_ctrl_o: Callable[[], None] | None = None) -> Iterator[QuietTerminal]:
    """On a terminal: turns echo off and delivers keys as they are typed. Ctrl-C acts, and drops none.

    `on_ctrl_o`: called on the running event loop when Ctrl-O is typed; None: it is a key like any other.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield QuietTerminal()  # a pipe, a file, or closed
        return
    quiet = [*before[:CONTROL], list(before[CONTROL])]
    quiet[INPUT_FLAGS] &= ~termios.ICRNL  # otherwise Return arrives like Enter
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    quiet[LOCAL_FLAGS] |= termios.NOFLSH
    with ExitStack() as stack:
        if on_ctrl_o is not None:
            quiet[CONTROL][termios.VQUIT] = CTRL_O
            stack.enter_context(_heeding(signal.SIGQUIT, on_ctrl_o))
        termios.tcsetattr(terminal, termios.TCSANOW, quiet)
        try:
            yield QuietTerminal(before)
        finally:
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(terminal, termios.TCSANOW, before)


@contextmanager
def _heeding(number: signal.Signals, handler: Callable[[], None]) -> Iterator[None]:
    loop, before = asyncio.get_running_loop(), signal.getsignal(number)
    loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        loop.remove_signal_handler(number)
        signal.signal(number, before)


def has_keys() -> bool:
    try:
        return sys.stdin.isatty()
    except (ValueError, AttributeError):
        return False


def typed_ahead() -> int:
    """How many bytes were typed and not read yet; 0 if standard input is not a terminal."""
    try:
        if not has_keys():
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4)))
        return int(count)
    except (OSError, ValueError, AttributeError):
        return 0


Permit = Callable[[CallWanted], Awaitable[Permission]]  # says whether a call may be run
ALL = "all"
KEYS = {"y": Permission.ONCE, "n": Permission.DENIED, "a": Permission.ALWAYS}
MOST_KEYS = 4096  # bytes at a time


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
    return f"{wanted.server}/{wanted.tool}" in allowed or ALL in allowed


class KeyPermission:
    """Asks on the terminal, whose keys come as they are typed.

    `allowed`: tools that are run without asking, as SERVER/TOOL, or ALL.
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
        while select([self._terminal], [], [], 0)[0] and (early := os.read(self._terminal, MOST_KEYS)):
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

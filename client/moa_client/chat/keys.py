"""Keys typed while an answer is written: kept for the next question, counted, and not echoed into the answer.

Two of them act at once: Ctrl-C, and Ctrl-O, which the terminal turns into SIGQUIT meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import signal
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

INPUT_FLAGS, LOCAL_FLAGS, CONTROL = 0, 3, 6  # indices into the list from termios


CTRL_O = b"\x0f"


Modes = list[Any]  # of a terminal, as termios has them


class QuietTerminal:
    """A terminal that is quiet."""

    def __init__(self, before: Modes | None = None) -> None:
        self._before = before

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """As it was meanwhile, for another program."""
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

    Args:
        on_ctrl_o: called on the running event loop when Ctrl-O is typed; None: it is a key like any other.
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

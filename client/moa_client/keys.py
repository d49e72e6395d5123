"""What is typed while an answer is written: kept for the next question, and not echoed into the answer."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INPUT_FLAGS, LOCAL_FLAGS, CONTROL = 0, 3, 6  # where they are in termios' list


@contextmanager
def quiet_keys() -> Iterator[None]:
    """Where standard input is a terminal: no echo, and keys arrive as they are typed. Ctrl-C works as before."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield  # a pipe, a file, or closed
        return
    quiet = [*before[:CONTROL], list(before[CONTROL])]
    quiet[INPUT_FLAGS] &= ~termios.ICRNL  # else Return arrives as Enter does
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)

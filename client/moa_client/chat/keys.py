"""Keys typed while an answer is written: kept for the next question, counted, and not echoed into the answer."""

from __future__ import annotations

import fcntl
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INPUT_FLAGS, LOCAL_FLAGS, CONTROL = 0, 3, 6  # indices into the list from termios


@contextmanager
def quiet_keys() -> Iterator[None]:
    """On a terminal: turns echo off and delivers keys as they are typed. Ctrl-C works, and drops none."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, termios.error):
        yield  # a pipe, a file, or closed
        return
    quiet = [*before[:CONTROL], list(before[CONTROL])]
    quiet[INPUT_FLAGS] &= ~termios.ICRNL  # otherwise Return arrives like Enter
    quiet[LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    quiet[LOCAL_FLAGS] |= termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)


def typed_ahead() -> int:
    """How many bytes were typed and not read yet; 0 if standard input is not a terminal."""
    try:
        if not sys.stdin.isatty():
            return 0
        (count,) = struct.unpack("i", fcntl.ioctl(sys.stdin.fileno(), termios.FIONREAD, bytes(4)))
        return int(count)
    except (OSError, ValueError, AttributeError):
        return 0

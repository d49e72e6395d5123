"""The end of a program that does not end by itself: at once, with its terminal as it was found.

State: how the terminal was.
"""

from __future__ import annotations

import os
import sys
import termios
from contextlib import suppress
from typing import Any

# Shows the cursor, no longer marks what is pasted, and ends the colours and the line.
_PLAIN = b"\x1b[?25h\x1b[?2004l\x1b[0m\r\n"
_found: list[Any] | None = None


def remember_terminal() -> None:
    """Notes how the terminal is, before anything changes it."""
    global _found
    with suppress(OSError, ValueError, AttributeError, termios.error):
        _found = termios.tcgetattr(sys.stdin.fileno())


def end_now(number: int) -> None:
    """Ends the program as a signal does, whatever it is doing."""
    if _found is not None:
        with suppress(OSError, ValueError, AttributeError, termios.error):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, _found)
        with suppress(OSError, ValueError, AttributeError):
            if os.isatty(sys.stderr.fileno()):
                os.write(sys.stderr.fileno(), _PLAIN)
    os._exit(128 + number)

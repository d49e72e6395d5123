"""Shows startup progress on one line of a terminal, before anything heavy is imported.

State: whether the line is shown. On a pipe, or a terminal that cannot clear a line, nothing is written.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO


class StartLine:
    """One line that is overwritten, and cleared at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._can_clear = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._shown = False

    def show(self, text: str) -> None:
        """Replaces the line."""
        if self._can_clear:
            self._stream.write(f"\r{text}\x1b[K\r")
            self._stream.flush()
            self._shown = True

    def clear(self) -> None:
        """Clears the line for other output."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False

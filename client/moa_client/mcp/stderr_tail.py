"""The newest words of a program on standard error, which say why it does not start."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

MOST_BYTES = 4096


class StderrTail:
    """Reads what a program writes, and keeps the end of it."""

    def __init__(self) -> None:
        self._tail = b""

    @property
    def last_line(self) -> str:
        """The last line; empty: there is none."""
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        """A file for the program to write to."""
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._read, ours)
        try:
            with os.fdopen(theirs, "w") as file:
                yield file
        finally:
            self._read(ours)
            loop.remove_reader(ours)
            os.close(ours)

    def _read(self, descriptor: int) -> None:
        try:
            self._tail = (self._tail + os.read(descriptor, 1 << 16))[-MOST_BYTES:]
        except BlockingIOError:
            return

"""Progress of what takes long: bars on a terminal, plain lines where there is none, nothing when silent.

A `Progress` is made at the edge (a command line) and handed down; library code only opens tasks on it. Invariant:
standard output is never written to, so that answers can be piped.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.filesize import decimal


class Task:
    """One running piece of work, which counts what is done. `show`: is told of each count."""

    def __init__(self, show: Callable[[int], object] = lambda done: None) -> None:
        self.done = 0
        self._show = show

    def advance(self, amount: int) -> None:
        self.reach(self.done + amount)

    def reach(self, done: int) -> None:
        self.done = done
        self._show(done)


class Progress:
    """Where progress is shown; this one shows nothing, and is the default of library calls."""

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        """Show `title` while the block runs; `total` units are expected (None: unknown)."""
        yield Task()

    def note(self, line: str) -> None:
        """Say one thing worth knowing."""

    def allows(self, question: str) -> bool:
        """Ask the user whether to do something; False where nobody can be asked."""
        return False


class PlainProgress(Progress):
    """Lines for logs and pipes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        size = f" ({decimal(total)})" if is_bytes and total else ""
        self.note(f"{title}{size} ...")
        start, quarters = time.monotonic(), 0

        def show(done: int) -> None:
            nonlocal quarters  # enough to see life in a log, too little to fill it
            if total and (reached := min(4 * done // total, 3)) > quarters:  # the closing line reports the last one
                quarters = reached
                self.note(f"{title}: {25 * quarters} %")

        yield Task(show)
        self.note(f"{title}: done in {time.monotonic() - start:.1f} s")

    def note(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class TerminalProgress(Progress):
    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        from rich import progress as rich_progress

        columns = (*rich_progress.Progress.get_default_columns(), *[rich_progress.DownloadColumn()] * is_bytes)
        with rich_progress.Progress(*columns, console=self._console) as bars:
            bar = bars.add_task(title, total=total)
            task = Task(lambda done: bars.update(bar, completed=done))
            yield task
            whole = total or max(task.done, 1)
            bars.update(bar, total=whole, completed=whole)

    def note(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)

    def allows(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        self._console.print(f"{question} [y/N] ", markup=False, highlight=False, end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")


def make_progress(stream: TextIO | None = None) -> Progress:
    """Bars where `stream` (default: standard error) is a terminal, plain lines elsewhere."""
    stream = sys.stderr if stream is None else stream
    return TerminalProgress(stream) if stream.isatty() else PlainProgress(stream)

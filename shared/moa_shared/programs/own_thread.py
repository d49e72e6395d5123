"""Blocking work on a thread of its own, which keeps no program from ending: Ctrl-C does not wait for it.

A thread cannot be interrupted, and a program waits for those of `asyncio.to_thread`, if need be for minutes. Invariant:
once nobody wants the work, it shows nothing more, and ends where it next reports its progress.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

from moa_shared.programs.progress import Progress, Task

Result = TypeVar("Result")


async def run_in_own_thread(work: Callable[[], Result], name: str) -> Result:
    """What the work returns or raises.

    Args:
        name: of the thread.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
            failure = error
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done


async def run_reporting(work: Callable[[Progress], Result], progress: Progress, name: str) -> Result:
    """The same for work that shows its progress, until it is cancelled."""
    wanted = _WantedProgress(progress)
    try:
        return await run_in_own_thread(lambda: work(wanted), name)
    except asyncio.CancelledError:
        wanted.abandon()
        raise


class _WantedProgress:
    """Another progress, as long as the work that reports to it is wanted."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._is_wanted = True
        self._shown: list[ExitStack] = []

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        self.check()
        with ExitStack() as shown:
            self._shown.append(shown)
            yield _WantedTask(shown.enter_context(self._progress.task(title, total, is_bytes=is_bytes)), self.check)

    def note(self, line: str) -> None:
        self.check()
        self._progress.note(line)

    def allows(self, question: str) -> bool:
        self.check()
        return self._progress.allows(question)

    def check(self) -> None:
        """Raises CancelledError if nobody wants the work any more."""
        if not self._is_wanted:
            raise asyncio.CancelledError

    def abandon(self) -> None:
        """Takes down what is shown: the work may hang."""
        self._is_wanted = False
        error = asyncio.CancelledError()
        for shown in self._shown:
            shown.__exit__(asyncio.CancelledError, error, None)


class _WantedTask:
    def __init__(self, task: Task, check: Callable[[], None]) -> None:
        self._task, self._check = task, check

    def advance(self, amount: int) -> None:
        self._check()
        self._task.advance(amount)

    def reach(self, done: int) -> None:
        self._check()
        self._task.reach(done)

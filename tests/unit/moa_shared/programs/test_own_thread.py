"""Blocking work on another thread, which ends where it reports once nobody wants it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moa_shared.programs.own_thread import run_reporting
from moa_shared.programs.progress import Progress, SilentProgress, Task


async def test_the_result_and_the_reports_come_through() -> None:
    notes: list[str] = []

    class Noting(SilentProgress):
        def note(self, line: str) -> None:
            notes.append(line)

    def work(progress: Progress) -> int:
        with progress.task("Counting", 3) as task:
            task.advance(1)
            task.reach(3)
        progress.note("done")
        return 3

    assert await run_reporting(work, Noting(), "counting") == 3
    assert notes == ["done"]


async def test_what_goes_wrong_is_raised_here() -> None:
    def work(_: Progress) -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        await run_reporting(work, SilentProgress(), "failing")


async def test_cancelled_work_shows_nothing_more_and_ends_at_its_next_report() -> None:
    began, cancelled, ended = threading.Event(), threading.Event(), threading.Event()
    shown: list[str] = []

    class Watched(SilentProgress):
        @contextmanager
        def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
            shown.append(title)
            try:
                with super().task(title, total, is_bytes=is_bytes) as task:
                    yield task
            finally:
                shown.remove(title)

    def work(progress: Progress) -> None:
        try:
            with progress.task("Fetching", 100) as task:
                began.set()
                assert cancelled.wait(10)
                task.advance(1)
            raise AssertionError("the work went on")
        except asyncio.CancelledError:
            ended.set()
            raise

    running = asyncio.create_task(run_reporting(work, Watched(), "fetching"))
    await asyncio.to_thread(began.wait, 10)
    assert shown == ["Fetching"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not shown
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 10)

"""The event loop, work on threads of its own, and signals."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from unittest.mock import Mock

import pytest
from moa_shared.programs.machine import Life
from moa_shared.programs.progress import Progress, Task
from moa_shared.programs.run_loop import BUSY_TIMES, look_up, looks_at, make_runner, one_family, run_reporting, turns

from tests.support.programs import PATIENCE

BLOCKED = """
import asyncio, functools, signal, sys, threading, time
from moa_shared.programs.run_loop import STUCK_SECONDS, make_runner

print = functools.partial(print, flush=True)
if sys.argv[1] == "missing":
    sys.modules["uvloop"] = None

async def main():
    heeded = []
    def heed():
        print("heeded")
        heeded.append(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, heed)
    if sys.argv[2] == "turns":
        while len(heeded) < 3:
            print("ready")
            await asyncio.sleep(0.01)
        await asyncio.sleep(STUCK_SECONDS)  # the timer of a signal that was thought unheeded would end it by then
        print("ended")
        return
    if sys.argv[2] == "closes":
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        asyncio.get_running_loop().call_later(0.2, print, "ready")
        await asyncio.sleep(0.5)
        return
    print("ready")
    while True:
        time.sleep(0.001) if sys.argv[2] == "sleeps" else None

with make_runner() as runner:
    runner.run(main())
"""


@pytest.fixture(params=["installed", "missing"])
def uvloop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether uvloop can be imported."""
    if request.param == "missing":
        monkeypatch.setitem(sys.modules, "uvloop", None)
        return False
    pytest.importorskip("uvloop", exc_type=ImportError)
    return True


def test_an_interrupt_cancels_what_runs(uvloop: bool) -> None:
    ended = []

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with make_runner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(wait())
    assert ended == ["cancelled"]


@pytest.mark.parametrize("way", ["computes", "sleeps"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_program_whose_loop_is_blocked(uvloop: bool, way: str, number: signal.Signals) -> None:
    with started(uvloop, way) as program:
        program.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.3)  # the first one waits for the loop
        program.send_signal(number)
        assert program.wait(PATIENCE) == 128 + number


def test_signals_of_a_loop_that_turns_are_its_own(uvloop: bool) -> None:
    with started(uvloop, "turns") as program:
        for _ in range(3):
            program.send_signal(signal.SIGINT)
            assert program.stdout is not None
            while program.stdout.readline() != "heeded\n":
                assert program.poll() is None
        out, _ = program.communicate(timeout=PATIENCE)
        assert (program.returncode, out) == (0, "ended\n")


def test_a_signal_ends_a_program_whose_threads_do_not_end(uvloop: bool) -> None:
    with started(uvloop, "closes") as program:
        code = None
        while code is None:  # those that come before it closes are the loop's
            program.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                code = program.wait(0.2)
        assert code == 130


@contextmanager
def started(uvloop: bool, way: str) -> Iterator[subprocess.Popen[str]]:
    """The program, as soon as it is ready."""
    command = [sys.executable, "-c", BLOCKED, "installed" if uvloop else "missing", way]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            yield program
        finally:
            program.kill()


async def test_the_result_and_the_reports_come_through() -> None:
    def work(progress: Progress) -> int:
        with progress.task("Counting", 3) as task:
            task.advance(1)
            task.reach(3)
        progress.note("done")
        return 3

    progress = Mock(wraps=Progress())
    assert await run_reporting(work, progress, "counting") == 3
    progress.note.assert_called_once_with("done")


async def test_cancelled_work_shows_nothing_more_and_ends_at_its_next_report() -> None:
    began, cancelled, ended = threading.Event(), threading.Event(), threading.Event()
    shown: list[str] = []

    class Watched(Progress):
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
                assert cancelled.wait(60)
                task.advance(1)
            raise AssertionError("the work went on")
        except asyncio.CancelledError:
            ended.set()
            raise

    running = asyncio.create_task(run_reporting(work, Watched(), "fetching"))
    await asyncio.to_thread(began.wait, 60)
    assert shown == ["Fetching"]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not shown
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 60)


async def test_a_name_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = threading.Event()
    failing = Mock(side_effect=[socket.gaierror(-2, "Name or service not known"), UnicodeError("label too long")])
    for resolver in (failing, failing, lambda *_, **__: let_go.wait()):  # the last one hangs
        monkeypatch.setattr(socket, "getaddrinfo", resolver)
        assert await look_up("nowhere.example", 0.05) == ()
    let_go.set()


async def test_a_wait_lasts_as_long_as_the_loop_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that leaps, as where the machine was busy with others, ends nothing that the loop could not see."""
    loop, leaps = asyncio.get_running_loop(), [0.0]
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + leaps[0])

    async def answer(turns_taken: int) -> None:
        for _ in range(turns_taken):
            leaps[0] += 100.0
            await asyncio.sleep(0)

    async with turns(60.0):
        await answer(10)
    with pytest.raises(TimeoutError):
        async with turns(60.0):
            await answer(10_000)


@pytest.mark.parametrize(("found", "expected"), [
    ((), ()),
    (("10.0.0.1",), ("10.0.0.1",)),
    (("fd00::1", "10.0.0.1"), ("fd00::1",)),  # one machine with both
    (("fd00::1", "10.0.0.1", "10.0.0.2"), ("10.0.0.1", "10.0.0.2")),
    (("10.0.0.1", "fd00::1", "10.0.0.2", "fd00::2"), ("10.0.0.1", "10.0.0.2")),
    (("fd00::1", "10.0.0.1", "fd00::2"), ("fd00::1", "fd00::2")),
])  # fmt: skip
def test_of_two_versions_of_ip_one_is_taken(found: tuple[str, ...], expected: tuple[str, ...]) -> None:
    assert one_family(found) == expected


@pytest.mark.parametrize(("life", "times"), [(Life(True, 0.0), 1), (None, 1), (Life(False, 0.0), BUSY_TIMES)])
async def test_a_busy_machine_is_told_from_a_process_that_hangs(
    monkeypatch: pytest.MonkeyPatch, life: Life | None, times: int
) -> None:
    monkeypatch.setattr("moa_shared.programs.run_loop.LOOK_SECONDS", 1e-4)
    looks = [1 async for _ in looks_at(1, 1e-2, lambda process: life)]
    assert len(looks) == pytest.approx(times * 100, abs=1)

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from moa_shared.programs.run_loop import loop_name, make_runner

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


async def running_loop() -> str:
    return loop_name()


def test_uvloop_runs_where_it_is_installed(uvloop: bool) -> None:
    with make_runner() as runner:
        assert runner.run(running_loop()) == ("uvloop" if uvloop else "asyncio")


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

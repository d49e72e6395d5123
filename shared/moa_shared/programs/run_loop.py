"""The event loop of both ends, work on threads of its own, and signals.

A loop that something blocks would let Ctrl-C and SIGTERM do nothing: where two signals came and it does not turn, or
one while it closes, the program ends at once, with its terminal as it was found. A program waits for threads of
`asyncio.to_thread`, if need be for minutes: so blocking work has a thread of its own, which keeps none from ending.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from moa_shared.programs.machine import Life, life_of
from moa_shared.programs.progress import Progress, Task

if TYPE_CHECKING:
    from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_SECONDS, BUSY_TIMES = 0.02, 20
TURNS = 20  # of a wait: what is late by one of them was held up on this machine
STUCK_SECONDS = 1.0  # a loop that has not turned for so long is blocked; a busy one turns many times


class _Heeding:
    """Makes signals end a program whose loop is blocked; goes before the loop's own class.

    State: the number of signals that the loop has not heeded yet. Handlers run on the main thread.
    """

    _unheeded = 0

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *arguments: Any) -> None:
        def heed() -> None:
            self._unheeded = 0
            callback(*arguments)

        super().add_signal_handler(sig, heed)  # type: ignore[misc]
        signal.signal(sig, self._on_signal)  # in place of one that does nothing: the loop is woken without it

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Called between two instructions of the main thread, also where the loop does not turn."""
        self._unheeded += 1
        if self._unheeded > 1:
            threading.Thread(target=self._end_if_stuck, args=(number,), daemon=True).start()

    def _end_if_stuck(self, number: int) -> None:
        for _ in range(TURNS):  # a busy machine holds up this thread as it does the loop's
            time.sleep(STUCK_SECONDS / TURNS)
        if self._unheeded > 1:
            end_now(number)


@contextmanager
def make_runner() -> Iterator[asyncio.Runner]:
    """A runner on the fastest loop there is; what that brings: docs/adr/0059-a-device-installs-little.md."""
    global _found
    with suppress(*_NO_TERMINAL):
        _found = termios.tcgetattr(sys.stdin.fileno())
    runner = asyncio.Runner(loop_factory=_loop_class())
    try:
        yield runner
    finally:
        with _ending_at_once():
            runner.close()


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """In this block, a signal that is not ignored ends the program."""
    is_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING if is_main}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, lambda number, frame: end_now(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_class() -> type[asyncio.AbstractEventLoop]:
    try:
        from uvloop import Loop
    except ImportError:  # no wheel for this system or this Python
        return type("Loop", (_Heeding, asyncio.SelectorEventLoop), {})
    return type("Loop", (_Heeding, Loop), {})


_found: list[Any] | None = None  # how the terminal was, before anything changed it
_NO_TERMINAL = (OSError, ValueError, AttributeError, termios.error)


def end_now(number: int) -> None:
    """Ends the program as a signal does, whatever it is doing."""
    if _found is not None:
        with suppress(*_NO_TERMINAL):
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, _found)
        with suppress(*_NO_TERMINAL):
            if os.isatty(sys.stderr.fileno()):  # shows the cursor, and ends marks of what is pasted, colours and line
                os.write(sys.stderr.fileno(), b"\x1b[?25h\x1b[?2004l\x1b[0m\r\n")
    os._exit(128 + number)


@asynccontextmanager
async def turns(seconds: float | None) -> AsyncIterator[None]:
    """As `asyncio.timeout`, by turns of this loop: a machine too busy for them holds up what is waited for too."""

    async def count(limit: asyncio.Timeout) -> None:
        for _ in range(TURNS if seconds is not None else 0):
            await asyncio.sleep((seconds or 0.0) / TURNS)
        limit.reschedule(None if seconds is None else asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        counting = asyncio.create_task(count(limit))
        try:
            yield
        finally:
            counting.cancel()


async def looks_at(process: int, seconds: float, look: Callable[[int], Life | None] = life_of) -> AsyncIterator[None]:
    """For as long as a process is idle, and BUSY_TIMES as long while it computes or waits to: a machine may be busy."""
    left = seconds
    while left > 0:
        yield
        life = look(process)
        left -= LOOK_SECONDS if life is None or life.is_idle else LOOK_SECONDS / BUSY_TIMES
        await asyncio.sleep(LOOK_SECONDS)


Result = TypeVar("Result")


async def run_in_own_thread(work: Callable[[], Result], name: str) -> Result:
    done: Future[Result] = Future()
    done.set_running_or_notify_cancel()  # so that nobody cancels it before the work has ended

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (whoever waits raises it)
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)


async def run_reporting(work: Callable[[Progress], Result], progress: Progress, name: str) -> Result:
    """The same for work that shows its progress, until it is cancelled."""
    wanted = _WantedProgress(progress)
    try:
        return await run_in_own_thread(lambda: work(wanted), name)
    except asyncio.CancelledError:
        wanted.abandon()
        raise


class _WantedProgress(Progress):
    """Another progress, as long as the work that reports to it is wanted."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._is_wanted, self._shown = progress, True, list[ExitStack]()

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        with ExitStack() as shown:
            self._shown.append(shown)
            task = shown.enter_context(self._wanted().task(title, total, is_bytes=is_bytes))

            def show(done: int) -> None:
                self._wanted()
                task.reach(done)

            yield Task(show)

    def note(self, line: str) -> None:
        self._wanted().note(line)

    def allows(self, question: str) -> bool:
        return self._wanted().allows(question)

    def _wanted(self) -> Progress:
        if not self._is_wanted:
            raise asyncio.CancelledError
        return self._progress

    def abandon(self) -> None:
        """Takes down what is shown: the work may hang."""
        self._is_wanted = False
        for shown in self._shown:
            shown.__exit__(asyncio.CancelledError, asyncio.CancelledError(), None)


async def look_up(host: str, seconds: float) -> tuple[str, ...]:
    """The addresses of a host, each once, as its resolver orders them; empty: there are none, or not in time."""
    flags = getattr(socket, "AI_ADDRCONFIG", 0)
    ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=flags)
    try:
        async with turns(seconds):
            found = await run_in_own_thread(ask, "name look-up")
    except (OSError, UnicodeError):  # TimeoutError is one of the system's
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))


def one_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Those of one version of IP: of the resolver's first if it has several, else of the other one if that has."""
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    others = [each for each in addresses if each not in first]
    return tuple(others if len(others) > 1 >= len(first) else first)

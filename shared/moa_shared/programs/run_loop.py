"""The event loop of both ends, work on threads of its own, and signals.

uvloop where it is installed, asyncio's own elsewhere. A loop that something blocks would let Ctrl-C and SIGTERM do
nothing: where two signals came and it does not turn, or one while it closes, the program ends at once, with its
terminal as it was found. A program waits for threads of `asyncio.to_thread`, if need be for minutes: so blocking work
has a thread of its own, which keeps no program from ending.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from moa_shared.programs.progress import Progress, Task

if TYPE_CHECKING:
    from types import FrameType

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STUCK_SECONDS = 1.0  # a loop that has not turned for so long is blocked; a busy one turns many times


class _Signals:
    """The signals that a loop has not heeded yet.

    State: their number. Handlers run on the main thread, the timer on its own.
    """

    def __init__(self) -> None:
        self._unheeded = 0

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Called between two instructions of the main thread, also where the loop does not turn."""
        self._unheeded += 1
        if self._unheeded > 1:
            timer = threading.Timer(STUCK_SECONDS, self._end_if_stuck, (number,))
            timer.daemon = True
            timer.start()

    def heed(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._unheeded = 0
        callback(*arguments)

    def _end_if_stuck(self, number: int) -> None:
        if self._unheeded > 1:
            end_now(number)


class _Heeding:
    """Makes a loop's signal handlers end a program whose loop is blocked; goes before the loop's own class."""

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *arguments: Any) -> None:
        signals: _Signals = self.__dict__.setdefault("signals", _Signals())
        super().add_signal_handler(sig, signals.heed, callback, *arguments)  # type: ignore[misc]
        signal.signal(sig, signals.on_signal)  # in place of one that does nothing: the loop is woken without it


@contextmanager
def make_runner() -> Iterator[asyncio.Runner]:
    """A runner on the fastest loop there is; what that brings: docs/adr/0059-a-device-installs-little.md."""
    remember_terminal()
    runner = asyncio.Runner(loop_factory=_loop_class())
    try:
        yield runner
    finally:
        with _ending_at_once():
            runner.close()


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """In this block, a signal that is not ignored ends the program."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in (number for number, handler in before.items() if handler is not signal.SIG_IGN):
        signal.signal(number, lambda number, frame: end_now(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _loop_class() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # no wheel for this system or this Python
        return type("Loop", (_Heeding, asyncio.SelectorEventLoop), {})
    return type("Loop", (_Heeding, uvloop.Loop), {})


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
        self._progress = progress
        self._is_wanted = True
        self._shown: list[ExitStack] = []

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        self.check()
        with ExitStack() as shown:
            self._shown.append(shown)
            task = shown.enter_context(self._progress.task(title, total, is_bytes=is_bytes))

            def show(done: int) -> None:
                self.check()
                task.reach(done)

            yield Task(show)

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


async def look_up(host: str, seconds: float) -> tuple[str, ...]:
    """The addresses of a host, as its resolver orders them; of those of IPv4 and IPv6 see `one_family`.

    Each comes once, without brackets; empty: there are none, or they did not come in time.
    """
    flags = getattr(socket, "AI_ADDRCONFIG", 0)
    ask = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=flags)
    try:
        async with asyncio.timeout(seconds):
            found = await run_in_own_thread(ask, "name look-up")
    except (OSError, UnicodeError):  # TimeoutError is one of the system's
        return ()
    return tuple(dict.fromkeys(str(where[0]) for *_, where in found))


def one_family(addresses: Sequence[str]) -> tuple[str, ...]:
    """Those of one version of IP: of the resolver's first if it has several, else of the other one if that has."""
    first = [each for each in addresses if (":" in each) == (":" in addresses[0])]
    others = [each for each in addresses if each not in first]
    return tuple(others if len(others) > 1 >= len(first) else first)

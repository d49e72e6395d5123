"""The event loop of both ends: uvloop where it is installed, asyncio's own elsewhere; no signal is lost in it.

A loop learns of a signal when it turns. One that something blocks would let Ctrl-C and SIGTERM do nothing: where two
signals came and it does not turn, the program ends. While a runner closes, waiting for its threads, one signal ends it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from moa_shared.programs.last_exit import end_now, remember_terminal

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
        """Called by the loop."""
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


def loop_name() -> str:
    """The package of the running loop, for logs: `uvloop` or `asyncio`."""
    packages = {kind.__module__.partition(".")[0] for kind in type(asyncio.get_running_loop()).__mro__}
    return "uvloop" if "uvloop" in packages else "asyncio"


def _loop_class() -> type[asyncio.AbstractEventLoop]:
    try:
        import uvloop
    except ImportError:  # no wheel for this system or this Python
        return type("Loop", (_Heeding, asyncio.SelectorEventLoop), {})
    return type("Loop", (_Heeding, uvloop.Loop), {})

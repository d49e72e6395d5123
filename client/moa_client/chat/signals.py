"""Signals that end the program: the server hears a goodbye, and the terminal is left as it was found.

SIGTERM and SIGHUP raise SystemExit with the shell's status (128 + the signal) while the program loads; while a
conversation runs they leave the server first. A signal that was ignored from the start (nohup) stays ignored.
"""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def exiting_on_signals() -> Iterator[None]:
    """In this block, signals unwind the program as an exit does, so that everything is restored."""
    before = {number: signal.signal(number, _exit) for number in _heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible_work() -> Iterator[None]:
    """Makes Ctrl-C end the program at once: work that blocks the event loop would learn of it too late."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@asynccontextmanager
async def leaving_on_signals(say_goodbye: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """A block that the first signal ends after saying goodbye; a second one does not wait for that.

    Ends in SystemExit if one arrived.
    """
    import asyncio  # not for those who ask for --help

    from moa_shared.programs.run_loop import end_now

    loop, program = asyncio.get_running_loop(), asyncio.current_task()
    numbers: list[int] = []
    leaving: list[asyncio.Task[None]] = []

    async def leave() -> None:
        try:
            await say_goodbye()
        finally:
            if program is not None:
                program.cancel()

    def on_signal(number: int) -> None:
        numbers.append(number)
        if len(numbers) > 2:
            end_now(number)  # something keeps it from ending
        if leaving:
            leaving[0].cancel()
        else:
            leaving.append(loop.create_task(leave()))

    before = {number: signal.getsignal(number) for number in _heeded()}
    for number in before:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
        if numbers:
            await asyncio.gather(*leaving, return_exceptions=True)
            raise SystemExit(128 + numbers[0])  # whatever the block raised, such as for a terminal that is gone


def _heeded() -> list[signal.Signals]:
    return [number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN]


def _exit(number: int, frame: object) -> None:
    raise SystemExit(128 + number)

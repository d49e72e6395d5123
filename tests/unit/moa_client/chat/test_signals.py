"""SIGTERM and SIGHUP: a goodbye first, then the end; what was ignored stays ignored."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from moa_client.chat.signals import exiting_on_signals, leaving_on_signals


def raised(number: int) -> None:
    os.kill(os.getpid(), number)


class Program:
    """One that waits until signals end it."""

    def __init__(self, *signals: int) -> None:
        self.happened: list[str] = []
        self._signals = list(signals)

    async def say_goodbye(self) -> None:
        if self._signals:
            raised(self._signals.pop())
            await asyncio.sleep(60)
        self.happened.append("goodbye")

    async def run(self, last_words: Exception | None = None) -> None:
        async with leaving_on_signals(self.say_goodbye):
            raised(self._signals.pop(0))
            try:
                await asyncio.sleep(60)
            finally:
                self.happened.append("unwound")
                if last_words is not None:
                    raise last_words


async def test_a_second_signal_does_not_wait_for_a_silent_server() -> None:
    program = Program(signal.SIGHUP, signal.SIGTERM)
    with pytest.raises(SystemExit) as leaving:
        await program.run()
    assert program.happened == ["unwound"]
    assert leaving.value.code == 128 + signal.SIGHUP


async def test_what_the_end_meets_does_not_hide_it() -> None:
    with pytest.raises(SystemExit):
        await Program(signal.SIGHUP).run(OSError("the terminal is gone"))


def test_while_it_loads_the_program_is_unwound() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def load() -> None:
        with exiting_on_signals():
            raised(signal.SIGTERM)
            time.sleep(60)

    with pytest.raises(SystemExit) as leaving:
        load()
    assert leaving.value.code == 143
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with exiting_on_signals():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            raised(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

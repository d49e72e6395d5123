"""Ctrl-C while an answer runs."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from moa_client.answering import interruptible
from moa_shared.errors import UnavailableError


class Server:
    """An answer that ends when the server hears that it should, if the server hears at all."""

    def __init__(self, *, hears: bool) -> None:
        self.ended = asyncio.Event()
        self.begun = asyncio.Event()
        self.asked = asyncio.Event()
        self.cleaned_up = False
        self._hears = hears

    async def answer(self) -> None:
        self.begun.set()
        try:
            await self.ended.wait()
        finally:
            self.cleaned_up = True

    async def stop(self) -> None:
        self.asked.set()
        if self._hears:
            self.ended.set()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_an_answer_that_ends_by_itself_was_not_interrupted() -> None:
    server = Server(hears=True)
    server.ended.set()
    assert await interruptible(asyncio.ensure_future(server.answer()), server.stop)


async def test_the_first_interrupt_asks_the_server() -> None:
    server = Server(hears=True)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    interrupt()
    assert not await waiting
    assert server.asked.is_set()


async def test_the_second_interrupt_does_not_wait_for_it() -> None:
    server = Server(hears=False)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    interrupt()
    await server.asked.wait()
    assert not waiting.done()
    interrupt()
    assert not await waiting
    assert server.cleaned_up


async def test_errors_and_cancellation_from_elsewhere_pass_through() -> None:
    async def fail() -> None:
        raise UnavailableError("The server is gone.")

    server = Server(hears=True)
    with pytest.raises(UnavailableError):
        await interruptible(asyncio.ensure_future(fail()), server.stop)
    waiting = asyncio.ensure_future(interruptible(asyncio.ensure_future(server.answer()), server.stop))
    await server.begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert server.cleaned_up

"""One answer: its events to a view, and Ctrl-C that ends the answer and not the program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import aclosing

from moa_shared.answer import AnswerSettings

from moa_client.jobs import Turn
from moa_client.talk import Talk
from moa_client.transcript import Transcript
from moa_client.views import View


async def answer(talk: Talk, turn: Turn, settings: AnswerSettings, transcript: Transcript, view: View) -> bool:
    """Asks, and shows what happens; False if the user stopped it.

    Raises:
        MoaError: why there is no (more) answer; what had come was shown.
    """

    async def stream() -> None:
        try:
            view.begin()
            async with aclosing(talk.ask(turn, settings)) as events:
                async for event in events:
                    view.show(event, transcript.apply(event), transcript)
        finally:
            view.end(transcript.break_off(), transcript)

    return await interruptible(asyncio.ensure_future(stream()), talk.stop)


async def interruptible(answering: asyncio.Future[None], stop: Callable[[], Coroutine[None, None, None]]) -> bool:
    """Waits for an answer; False if it was interrupted.

    The first Ctrl-C asks the server, which ends the answer properly; a second one does not wait for that.
    """
    loop = asyncio.get_running_loop()
    requests: list[asyncio.Future[None]] = []
    given_up = False

    def interrupt() -> None:
        nonlocal given_up
        if requests:
            given_up = True
            answering.cancel()
        else:
            requests.append(asyncio.ensure_future(stop()))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await answering
    except asyncio.CancelledError:
        if not given_up:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    return not requests

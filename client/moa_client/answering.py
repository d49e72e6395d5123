"""One answer on a screen or a pipe: text as it comes, and Ctrl-C that ends the answer and not the program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import aclosing

from moa_shared.answer import AnswerSettings
from moa_shared.template import ChatTemplate
from moa_shared.text import TextStream

from moa_client.events import Committed
from moa_client.loading import Device
from moa_client.talk import Talk


async def answer(
    talk: Talk,
    device: Device,
    template: ChatTemplate,
    question: str,
    settings: AnswerSettings,
    show: Callable[[str], None],
) -> bool:
    """Asks, and shows the answer piece by piece; False if the user stopped it.

    Raises:
        MoaError: why there is no (more) answer; what had come was shown.
    """
    committed = talk.conversation.tokens
    turn = template.next_turn(question, committed) if committed else template.first_turn(question)
    text = TextStream(lambda tokens: device.tokenizer.decode(tokens, skip_special_tokens=True), settings.stop)

    async def stream() -> None:
        try:
            async with aclosing(talk.ask(turn, settings)) as answered:
                async for event in answered:
                    if isinstance(event, Committed) and (piece := text.push(event.tokens)):
                        show(piece)
        finally:
            if piece := text.finish():
                show(piece)

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

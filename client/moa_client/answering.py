"""One answer on a screen or a pipe: text as it comes, and Ctrl-C that ends the answer and not the program."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from moa_shared.answer import AnswerSettings
from moa_shared.template import ChatTemplate
from moa_shared.text import TextStream

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
    stopped = asyncio.Event()
    with _on_interrupt(talk, stopped):
        try:
            async for tokens in talk.ask(turn, settings):
                if piece := text.push(tokens):
                    show(piece)
        finally:
            if piece := text.finish():
                show(piece)
    return not stopped.is_set()


@contextmanager
def _on_interrupt(talk: Talk, stopped: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C asks the server to end the answer; a second one gives up on the server."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    requests: set[asyncio.Task[None]] = set()

    def interrupt() -> None:
        if stopped.is_set() and task is not None:
            task.cancel()
        stopped.set()
        requests.add(loop.create_task(talk.stop()))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for request in requests:
            request.cancel()

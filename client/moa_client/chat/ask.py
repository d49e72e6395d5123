"""Passes the events of one answer to a view; Ctrl-C ends the answer, not the program.

State: the transcripts of answers that ended without the server, oldest first, until the server has decided them.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress

from moa_shared.protocol.finish_rule import AnswerSettings

from moa_client.chat.views import View
from moa_client.conversation.events import Earlier, Ended, Event, LinkChanged, LinkState, Refused, Settled
from moa_client.conversation.jobs import Turn
from moa_client.conversation.transcript import Transcript
from moa_client.engine.engine import ClientEngine
from moa_client.link.log import log_link_change


class Asker:
    """Asks one question after another.

    Args:
        engine: of the conversation.
        settle_seconds: how long an answer that ended without the server waits for it; 0: it is decided later.
    """

    def __init__(self, engine: ClientEngine, settle_seconds: float = 0.0) -> None:
        self._engine = engine
        self._settle_seconds = settle_seconds
        self._unsettled: deque[Transcript] = deque()

    async def answer(self, turn: Turn, settings: AnswerSettings, transcript: Transcript, view: View) -> bool:
        """Asks, and shows what happens; False if the user stopped it.

        Raises:
            MoaError: why there is no (more) answer; what had arrived was shown.
        """
        waiting: asyncio.Timeout | None = None

        async def stream() -> None:
            nonlocal waiting
            try:
                view.begin()
                async with aclosing(self._engine.ask(turn, settings)) as events:
                    async for event in events:
                        self._show(event, transcript, view)
                if self._settle_seconds and transcript in self._unsettled:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._settle_seconds) as waiting:
                            await self._wait_for_verdict(waiting, transcript, view)
            finally:
                view.end(transcript.break_off(), transcript)

        async def stop() -> None:
            if waiting is None:
                await self._engine.stop()
            else:
                waiting.reschedule(asyncio.get_running_loop().time())

        return await interruptible(asyncio.ensure_future(stream()), stop)

    async def _wait_for_verdict(self, waiting: asyncio.Timeout, transcript: Transcript, view: View) -> None:
        """Waits until the server has decided the standalone text; the time runs while it is unavailable."""
        async with aclosing(self._engine.settle()) as events:
            async for event in events:
                self._show(event, transcript, view)
                if isinstance(event, LinkChanged):
                    lost = event.state is LinkState.OFFLINE
                    now = asyncio.get_running_loop().time()
                    waiting.reschedule(now + self._settle_seconds if lost else None)

    @property
    def unsettled(self) -> Sequence[Transcript]:
        """The answers that ended without the server and are not decided yet, oldest first."""
        return self._unsettled

    def settle(self, event: Earlier | Settled | Refused) -> Transcript | None:
        """The transcript of the oldest undecided answer after an event about it; None: that answer is forgotten."""
        if not self._unsettled:
            return None
        transcript = self._unsettled[0] if isinstance(event, Earlier) else self._unsettled.popleft()
        transcript.apply(event)
        return transcript

    def reset(self) -> None:
        """Starts a new conversation: no answer of the old one will be decided."""
        self._unsettled.clear()

    def _show(self, event: Event, transcript: Transcript, view: View) -> None:
        log_link_change(event)
        if isinstance(event, Earlier | Settled | Refused):
            if self._unsettled and self._unsettled[0] is transcript:
                if isinstance(event, Refused):
                    raise event.error
                if isinstance(event, Settled):
                    self._unsettled.popleft()
                view.show(event, transcript.apply(event), transcript)
            elif (earlier := self.settle(event)) is not None:
                view.show_earlier(event, earlier)
            return
        piece = transcript.apply(event)
        if isinstance(event, Ended) and event.provisional:
            self._unsettled.append(transcript)
        view.show(event, piece, transcript)


async def interruptible(asker: asyncio.Future[None], stop: Callable[[], Coroutine[None, None, None]]) -> bool:
    """Waits for an answer; False if it was interrupted.

    The first Ctrl-C asks the server, which ends the answer cleanly; a second one does not wait for it.
    """
    loop = asyncio.get_running_loop()
    requests: list[asyncio.Future[None]] = []
    given_up = False

    def interrupt() -> None:
        nonlocal given_up
        if requests:
            given_up = True
            asker.cancel()
        else:
            requests.append(asyncio.ensure_future(stop()))

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        await asker
    except asyncio.CancelledError:
        if not given_up:
            raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
    return not requests

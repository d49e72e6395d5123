"""Sends an answer as it comes, or when it is over, and ends it when the client leaves.

Invariant: a failure before anything was sent is a status of HTTP; after that it is the last event of the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from moa_shared.errors import MoaError, UnavailableError
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from moa_client.endpoint.asked import AnyProgress, Form, Progress
from moa_client.web.closing import Closing
from moa_client.web.error_form import request_error

KEEP_ALIVE_SECONDS = 15.0  # proxies and clients wait for at least 30
HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy must not hold events back
}


GivenProgress = TypeVar("GivenProgress", bound=Progress, covariant=True)


class Following(Protocol[GivenProgress]):
    """Follows what a request asked for: `Answering`, or several of them."""

    @property
    def progress(self) -> GivenProgress:
        """How far it is."""
        ...

    async def change(self, seconds: float) -> bool:
        """Waits until something has changed since the last call, at most so long; whether it has."""
        ...

    def fail(self, error: MoaError) -> None:
        """It ends here; `close` tells the server."""
        ...

    async def close(self) -> None:
        """Ends it, if it is not over."""
        ...


class AnswerResponse(Response, Generic[AnyProgress]):
    """The response to a request for an answer, or for several.

    Args:
        start: begins the answer.
        closing: ends it when the server closes.
        form: how it is sent.
    """

    def __init__(self, start: Callable[[], Following[AnyProgress]], closing: Closing, form: Form[AnyProgress]) -> None:
        super().__init__()
        self._start = start
        self._closing = closing
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = self._start()
        ways = [
            asyncio.create_task(self._respond(answering, scope, receive, send)),
            asyncio.create_task(_left(receive)),
            asyncio.create_task(self._end_at_closing(answering)),
        ]
        try:
            await asyncio.wait(ways[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            outcomes = await asyncio.gather(*ways, return_exceptions=True)
            await answering.close()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _respond(self, answering: Following[AnyProgress], scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _end_at_closing(self, answering: Following[AnyProgress]) -> None:
        await self._closing.wait()
        answering.fail(UnavailableError("The program that serves this endpoint ends.", hint="Start it again."))


class WholeResponse(AnswerResponse[AnyProgress]):
    """The answer when it is over."""

    async def _respond(self, answering: Following[AnyProgress], scope: Scope, receive: Receive, send: Send) -> None:
        progress = answering.progress
        while not progress.is_over:
            await answering.change(KEEP_ALIVE_SECONDS)
        if progress.failure is not None:
            response = self._form.refusal(request_error(progress.failure))
        else:
            response = JSONResponse(self._form.whole(progress))
        await response(scope, receive, send)


class StreamedResponse(AnswerResponse[AnyProgress]):
    """The answer as it comes."""

    def __init__(
        self,
        start: Callable[[], Following[AnyProgress]],
        closing: Closing,
        form: Form[AnyProgress],
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        super().__init__(start, closing, form)
        self._keep_alive_seconds = keep_alive_seconds
        self.raw_headers = [
            (name.encode(), value.encode()) for name, value in {"content-type": form.media_type, **HEADERS}.items()
        ]

    async def _respond(self, answering: Following[AnyProgress], scope: Scope, receive: Receive, send: Send) -> None:
        form, progress = self._form, answering.progress
        has_begun = False
        while True:
            has_changed = await answering.change(self._keep_alive_seconds)
            is_over, failure = progress.is_over, progress.failure  # sending takes time, in which they may change
            if failure is not None and not has_begun:
                await form.refusal(request_error(failure))(scope, receive, send)
                return
            body = form.next(progress) if has_changed else form.keep_alive
            if failure is not None:
                body += form.failed(request_error(failure))
            elif is_over:
                body += form.last(progress)
            if not body:
                continue
            if not has_begun:
                has_begun = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                body = form.first() + body
            await send({"type": "http.response.body", "body": body, "more_body": not is_over})
            if is_over:
                return


async def _left(receive: Receive) -> None:
    """Returns when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass

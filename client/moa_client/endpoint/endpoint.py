"""Answers requests, whichever API they are of: follows the answers, and sends them as they come or when they are over.

State: a task for each answer. What a slow client has not read waits as text, not as events; so it holds up neither the
conversation nor other requests. Invariants: a failure before anything was sent is a status of HTTP, after that the last
event of the stream; when an answer is closed, the server has been told.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from moa_shared.errors import MoaError, OverloadedError, UnavailableError
from moa_shared.tracing import TRACEPARENT
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from moa_client.conversation.answer_text import AnswerDecoder, AnswerText
from moa_client.conversation.options import AnswerOptions
from moa_client.endpoint.answer import Answer, Form, ToldTokens
from moa_client.endpoint.ask import ChatAsk, HostModel, HostModels, Prompt, Vectors
from moa_client.host.surface_session import Watch
from moa_client.logs import told
from moa_client.settings import DEFAULT_MODEL
from moa_client.web.access import request_error

MOST_WAITING = 64  # each is one open connection
KEEP_ALIVE_SECONDS = 15.0  # proxies and clients wait for at least 30
HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy must not hold events back
}


class AnswerSlots:
    """Lets a number of answers run; others wait in the order in which they came, up to a bound.

    `running`: how many at once. `waiting`: how many more may wait.
    """

    def __init__(self, running: int, waiting: int = MOST_WAITING) -> None:
        self._free = asyncio.Semaphore(running)
        self._waiting = 0
        self._most_waiting = waiting

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._free.locked() and self._waiting >= self._most_waiting:
            raise OverloadedError(f"{self._waiting} requests wait already.", hint="Try again in a few seconds.")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free.release()


class AnswerResponse(Response):
    """The response to a request for an answer: waits for its turn, asks, and takes in the updates as fast as they come.

    Args:
        begin: asks for the answer; may raise MoaError.
        closing: ends it when the server closes.
        keep_alive_seconds: after which a stream that has nothing to say says so; None: it is no stream.
    """

    def __init__(
        self,
        form: Form,
        slots: AnswerSlots,
        begin: Callable[[], Watch],
        closing: asyncio.Event,
        keep_alive_seconds: float | None,
    ) -> None:
        super().__init__()
        self._answer = form.answer
        self._slots = slots
        self._begin = begin
        self._form = form
        self._closing = closing
        self._keep_alive_seconds = keep_alive_seconds
        self._changed = asyncio.Event()
        self._is_leaving = False  # the conversation is being closed, which must not be interrupted
        headers = {"content-type": form.media_type, **HEADERS}
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        following = asyncio.create_task(self._follow())
        respond = self._respond_whole if self._keep_alive_seconds is None else self._stream
        ways = [
            asyncio.create_task(respond(scope, receive, send)),
            asyncio.create_task(_left(receive)),
            asyncio.create_task(self._end_at_closing()),
        ]
        try:
            await asyncio.wait(ways[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            outcomes = await asyncio.gather(*ways, return_exceptions=True)
            if not self._is_leaving:
                following.cancel()
            await asyncio.shield(asyncio.gather(following, return_exceptions=True))
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def _follow(self) -> None:
        try:
            async with self._slots.turn():
                conversation = self._begin()
                try:
                    await self._read(conversation)
                finally:
                    self._is_leaving = True
                    self._changed.set()
                    await conversation.close()
        except BaseException as error:  # noqa: BLE001 (whatever it is, the request gets an answer)
            self._answer.fail(told(error, "The answer"))
        finally:
            self._changed.set()

    async def _read(self, conversation: Watch) -> None:
        answer, now = self._answer, asyncio.get_running_loop().time
        answer.on_link(conversation.conversation.engine.status.state, now())
        try:
            async with asyncio.timeout_at(answer.deadline) as clock:
                async with aclosing(cast("Any", conversation.updates())) as updates:
                    async for update in updates:
                        answer.apply(update, now())
                        self._changed.set()
                        if answer.is_over:
                            return
                        clock.reschedule(answer.deadline)
            answer.fail(UnavailableError("The conversation was closed.", hint="Ask again."))
        except TimeoutError:
            answer.give_up()

    async def _end_at_closing(self) -> None:
        await self._closing.wait()
        self._answer.fail(UnavailableError("The program that serves this endpoint ends.", hint="Start it again."))
        self._changed.set()

    async def _has_changed(self, seconds: float) -> bool:
        """Waits until something has changed since the last call, at most so long; whether it has."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        has_changed = self._changed.is_set()
        self._changed.clear()
        return has_changed

    async def _respond_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not self._answer.is_over:
            await self._has_changed(KEEP_ALIVE_SECONDS)
        if (failure := self._answer.failure) is not None:
            response = request_error(failure).response(self._form.path)
        else:
            response = JSONResponse(self._form.whole())
        await response(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        form, answer, has_begun = self._form, self._answer, False
        while True:
            has_changed = await self._has_changed(self._keep_alive_seconds or KEEP_ALIVE_SECONDS)
            failure, is_over = answer.failure, answer.is_over  # sending takes time, in which they may change
            if failure is not None and not has_begun:
                await request_error(failure).response(form.path)(scope, receive, send)
                return
            if failure is not None:
                body = form.next() + form.failed(request_error(failure))
            elif is_over:
                body = form.last()
            else:
                body = form.next() if has_changed else form.keep_alive
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
    while (await receive())["type"] != "http.disconnect":
        pass


ModelSource = Callable[[], Awaitable[HostModels]]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How requests are answered.

    Args:
        settle_seconds: how long a request waits for a server that is lost.
        unverified: what happens then, where the request does not say it.
        max_requests: answers at once; `most_waiting`: requests that wait for their turn.
        keep_alive_seconds: after which a stream that has nothing to say says so.
    """

    settle_seconds: float = 30.0
    unverified: Literal["end", "fail"] = "fail"
    max_requests: int = 8
    most_waiting: int = MOST_WAITING
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS


class Endpoint:
    """Answers requests.

    `source`: gives the models; raises MoaError where there are none yet. `closing`: ends requests when the server
    closes.
    """

    def __init__(self, source: ModelSource, settings: EndpointSettings, closing: asyncio.Event) -> None:
        self.since = int(time.time())
        self._source = source
        self._settings = settings
        self._closing = closing
        self._slots = AnswerSlots(settings.max_requests, settings.most_waiting)

    async def among(self, find: Callable[[HostModels], Awaitable[Found]]) -> Found:
        """What is found among the models."""
        try:
            return await find(await self._source())
        except MoaError as error:  # such as a missing file, which is not this request's fault
            raise request_error(error, status=503) from None

    async def model(self, name: str = DEFAULT_MODEL) -> HostModel:
        return await self.among(lambda models: models.loaded(name))

    async def answer(self, ask: ChatAsk, form: Callable[[Answer], Form], request: Request) -> Response:
        """The answer to what is asked.

        `form`: how it is sent. `request`: as it came, for the span that it is part of.
        """
        model = await self.model(ask.model)
        prompt = await asyncio.to_thread(ask.prompt, model)
        options = replace(ask.options.decided(model.sampling, ask.defaults), constraint=prompt.constraint)
        traceparent = request.headers.get(TRACEPARENT, "")
        return AnswerResponse(
            form(self._answer(ask, model, prompt, options)),
            self._slots,
            lambda: model.begin(prompt.tokens, options, traceparent),
            self._closing,
            self._settings.keep_alive_seconds if ask.stream else None,
        )

    def _answer(self, ask: ChatAsk, model: HostModel, prompt: Prompt, options: AnswerOptions) -> Answer:
        decoder, tokenizer = None, model.tokenizer
        if prompt.is_marked_by(tokenizer.special_tokens):
            decoder = AnswerDecoder(AnswerText(options=options), model.spelled)
        special = frozenset(tokenizer.special_tokens.values())

        def shown(tokens: Sequence[int]) -> str:
            if decoder is not None:
                return model.spelled(tokens)
            return tokenizer.decode([token for token in tokens if token not in special])

        return Answer(
            identifier=secrets.token_hex(12),
            created=int(time.time()),
            model=model.name,
            fingerprint=model.fingerprint,
            seed=options.seed or 0,
            prompt=prompt,
            ends_unverified=(ask.unverified or self._settings.unverified) == "end",
            settle_seconds=self._settings.settle_seconds,
            decoder=decoder,
            stops=options.stop,
            told=ToldTokens(tokenizer, shown) if options.chances is not None else None,
        )

    async def embed(self, model: HostModel, texts: Sequence[Sequence[int]]) -> Vectors:
        """The vectors of some texts; they wait for their turn as an answer does."""
        async with self._slots.turn():
            return await model.embed(texts)

"""Answers requests, whichever API they are of."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from moa_shared.errors import MoaError
from moa_shared.tracing import TRACEPARENT
from starlette.requests import Request
from starlette.responses import Response

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import AnswerText
from moa_client.endpoint.answer import Answer, AnswerHeader, Form
from moa_client.endpoint.ask import ChatAsk, Prompt
from moa_client.endpoint.fields import DEFAULT_MODEL
from moa_client.endpoint.host_source import Embeddings, HostModel
from moa_client.endpoint.response import (
    KEEP_ALIVE_SECONDS,
    MOST_WAITING,
    Answering,
    AnswerResponse,
    AnswerSlots,
)
from moa_client.endpoint.tokens import StopSearch, ToldTokens
from moa_client.web.error_form import RequestError, request_error

ModelSource = Callable[[], Awaitable[HostModel]]
SEEDS = 1 << 64


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

    Args:
        source: gives the model, as it is now; raises MoaError where there is none yet.
        closing: ends requests when the server closes.
    """

    def __init__(self, source: ModelSource, settings: EndpointSettings, closing: asyncio.Event) -> None:
        self.since = int(time.time())
        self._source = source
        self._settings = settings
        self._closing = closing
        self._slots = AnswerSlots(settings.max_requests, settings.most_waiting)

    async def model(self, name: str = DEFAULT_MODEL) -> HostModel:
        try:
            model = await self._source()
        except MoaError as error:  # such as a missing file, which is not this request's fault
            raise request_error(error, status=503) from None
        if name not in (model.name, DEFAULT_MODEL):
            words = f"There is no model {name[:200]!r} here. Ask for {model.name!r}, or {DEFAULT_MODEL!r}."
            raise RequestError(404, words, param="model", code="model_not_found")
        return model

    async def answer(self, ask: ChatAsk, form: Callable[[AnswerHeader], Form], request: Request) -> Response:
        """The answers to what is asked, `n` to each question, each with a seed of its own.

        Args:
            form: how they are sent.
            request: as it came, for the span that it is part of.
        """
        model = await self.model(ask.model)
        prompts = await asyncio.to_thread(ask.prompts, model)
        options = ask.options.decided(model.sampling, ask.defaults)
        seeds = [((options.seed or 0) + index) % SEEDS for _ in prompts for index in range(ask.n)]
        tokens = sum(len(prompt.tokens) for prompt in prompts)
        identifier, traceparent = secrets.token_hex(12), request.headers.get(TRACEPARENT, "")
        header = AnswerHeader(identifier, int(time.time()), model.name, model.fingerprint, tokens, tuple(seeds))
        following = []
        for number, seed in enumerate(seeds):
            prompt = prompts[number // ask.n]
            chosen = replace(options, seed=seed, constraint=prompt.constraint)
            index = number % ask.n
            name = f"{identifier}-{index}" if index else identifier
            following.append(self._following(ask, model, prompt, chosen, name, traceparent))
        keep_alive = self._settings.keep_alive_seconds if ask.stream else None
        return AnswerResponse(following, form(header), self._closing, keep_alive)

    def _following(
        self, ask: ChatAsk, model: HostModel, prompt: Prompt, options: AnswerOptions, name: str, traceparent: str
    ) -> Answering:
        decoder, tokenizer = None, model.tokenizer
        if prompt.is_marked_by(tokenizer.special_tokens):
            decoder = AnswerDecoder(AnswerText(options=options), model.spelled)
        special = frozenset(tokenizer.special_tokens.values())

        def shown(tokens: Sequence[int]) -> str:
            if decoder is not None:
                return model.spelled(tokens)
            return tokenizer.decode([token for token in tokens if token not in special])

        answer = Answer(
            ends_unverified=(ask.unverified or self._settings.unverified) == "end",
            settle_seconds=self._settings.settle_seconds,
            identifier=name,
            prompt=prompt,
            decoder=decoder,
            stops=StopSearch(options.stop, model.spelled) if options.stop else None,
            told=ToldTokens(tokenizer, shown) if options.chances is not None else None,
        )

        return Answering(answer, self._slots, lambda: model.begin(prompt.tokens, options, traceparent))

    async def embed(self, model: HostModel, texts: Sequence[Sequence[int]]) -> Embeddings:
        """The vectors of some texts; they wait for their turn as an answer does."""
        async with self._slots.turn():
            return await model.embed(texts, self._settings.settle_seconds)

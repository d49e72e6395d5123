"""Answers requests, whichever API they are of."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from moa_shared.errors import ContextLengthError, MoaError
from moa_shared.tracing.spans import TRACEPARENT
from starlette.requests import Request
from starlette.responses import Response

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_slots import MOST_WAITING, AnswerSlots
from moa_client.endpoint.answer_source import AnswerSource, OneAnswer, ServedModel
from moa_client.endpoint.answering import Answering
from moa_client.endpoint.asked import AnswerHeader, Asked
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.response import KEEP_ALIVE_SECONDS, StreamedResponse, WholeResponse
from moa_client.tools.answer_split import AnswerSplit
from moa_client.web.closing import Closing
from moa_client.web.error_form import RequestError, request_error

DEFAULT_MODEL = "default"  # any program's configuration can name it, whatever the server serves


@dataclass(frozen=True, slots=True)
class EndpointSettings:
    """How requests are answered.

    Args:
        settle_seconds: how long a request waits for a server that is lost.
        unverified: what happens then, where the request does not say it.
        max_requests: answers at once; `most_waiting`: requests that wait for their turn.
        keep_alive_seconds: after which a stream that has nothing to say says so.
    """

    settle_seconds: float = 10.0
    unverified: Literal["end", "fail"] = "fail"
    max_requests: int = 8
    most_waiting: int = MOST_WAITING
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS


class Endpoint:
    """Answers requests.

    Args:
        source: where answers come from.
        closing: ends requests when the server closes.
    """

    def __init__(self, source: AnswerSource, settings: EndpointSettings, closing: Closing) -> None:
        self.since = int(time.time())
        self._source = source
        self._settings = settings
        self._closing = closing
        self._slots = AnswerSlots(settings.max_requests, settings.most_waiting)

    async def model(self, name: str = DEFAULT_MODEL) -> ServedModel:
        """The model, as it is now.

        Raises:
            RequestError: there is none yet, or none of this name.
        """
        try:
            model = await self._source.model()
        except MoaError as error:  # such as a missing file, which is not this request's fault
            raise request_error(error, status=503) from None
        if name not in (model.name, DEFAULT_MODEL):
            raise RequestError(
                404,
                f"There is no model {name[:200]!r} here. Ask for {model.name!r}, or {DEFAULT_MODEL!r}.",
                param="model",
                code="model_not_found",
            )
        return model

    async def answer(self, asked: Asked, request: Request) -> Response:
        """The answer to a request.

        Args:
            request: as it came, for the span that it is part of.

        Raises:
            RequestError: it cannot be answered.
        """
        model = await self.model(asked.model)
        prompt = await asyncio.to_thread(asked.prompt, model)
        options = asked.options(model.sampling, model.vocab_size)
        if prompt.constraint is not None:
            options = replace(options, constraint=prompt.constraint)
        _check_length(len(prompt.tokens), model.context_tokens)
        header = AnswerHeader(
            secrets.token_hex(12),
            int(time.time()),
            model.name,
            model.fingerprint,
            len(prompt.tokens),
            options.seed or 0,
        )
        parts = decoder = split = None
        if prompt.markup is not None:
            parts = AnswerParts(prompt.markup, header.identifier)
            split = prompt.markup.split()
            if prompt.markup.has_any(model.special_tokens):
                decoder = AnswerDecoder(AnswerText(options=options), model.spelled)
        traceparent = request.headers.get(TRACEPARENT, "")
        start = partial(self._start, asked, lambda: model.begin(prompt.tokens, options, traceparent), decoder, split)
        form = asked.form(header, parts)
        if not asked.stream:
            return WholeResponse(start, self._closing, form)
        return StreamedResponse(start, self._closing, form, self._settings.keep_alive_seconds)

    def _start(
        self,
        asked: Asked,
        begin: Callable[[], OneAnswer],
        decoder: AnswerDecoder | None,
        split: AnswerSplit | None,
    ) -> Answering:
        settings = self._settings
        unverified = asked.unverified or settings.unverified
        progress = AnswerProgress(
            ends_unverified=unverified == "end", settle_seconds=settings.settle_seconds, decoder=decoder, split=split
        )
        return Answering(begin, progress, self._slots)


def _check_length(prompt: int, context: int) -> None:
    """Refuses what leaves no room for an answer.

    Raises:
        ContextLengthError: the prompt fills the context.
    """
    if prompt >= context:
        raise ContextLengthError(
            f"The prompt has {prompt} tokens, the context {context} in all.", hint="Shorten the prompt."
        )

"""The routes of the endpoint: models, completions of chats, completions of texts."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from moa_shared.errors import ContextLengthError, MoaError
from moa_shared.tracing.spans import TRACEPARENT
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_text import AnswerText
from moa_client.endpoint.answer_slots import MOST_WAITING, AnswerSlots
from moa_client.endpoint.answer_source import AnswerSource, OneAnswer, ServedModel
from moa_client.endpoint.answering import Answering
from moa_client.endpoint.chat_prompt import ChatPrompt, chat_prompt
from moa_client.endpoint.forms import ChatCompletionSchema, Chunks, Form, ResponseHeader, TextForm, whole_answer
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.requests import (
    DEFAULT_MODEL,
    AnswerRequest,
    TextRequest,
    chat_request,
    text_request,
)
from moa_client.endpoint.response import KEEP_ALIVE_SECONDS, StreamedResponse, WholeResponse
from moa_client.endpoint.tool_answer import ToolAnswer
from moa_client.web.body import read_json
from moa_client.web.closing import Closing
from moa_client.web.error_form import RequestError, request_error


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


def endpoint_routes(source: AnswerSource, settings: EndpointSettings, closing: Closing) -> list[BaseRoute]:
    """The routes.

    Args:
        source: where answers come from.
        closing: ends requests when the server closes.
    """
    endpoint = Endpoint(source, settings, closing)
    return [
        Route("/v1/models", endpoint.models),
        Route("/v1/models/{name:path}", endpoint.model),
        Route("/v1/chat/completions", endpoint.chat, methods=["POST"]),
        Route("/v1/completions", endpoint.text, methods=["POST"]),
    ]


class Endpoint:
    """Handles requests."""

    def __init__(self, source: AnswerSource, settings: EndpointSettings, closing: Closing) -> None:
        self._source = source
        self._settings = settings
        self._closing = closing
        self._slots = AnswerSlots(settings.max_requests, settings.most_waiting)
        self._since = int(time.time())

    async def models(self, request: HttpRequest) -> Response:
        """The only model."""
        model = await self._model()
        return JSONResponse({"object": "list", "data": [self._model_fields(model)]})

    async def model(self, request: HttpRequest) -> Response:
        """A model by its name."""
        model = await self._model()
        _check_name(request.path_params["name"], model)
        return JSONResponse(self._model_fields(model))

    async def chat(self, request: HttpRequest) -> Response:
        """The next message of a chat."""
        asked = chat_request(await read_json(request))
        model = await self._model()
        _check_name(asked.model, model)
        prompt = await asyncio.to_thread(chat_prompt, asked, model)
        return self._answer(ChatCompletionSchema, asked, model, prompt, request.headers.get(TRACEPARENT, ""))

    async def text(self, request: HttpRequest) -> Response:
        """The continuation of a text."""
        asked = text_request(await read_json(request))
        model = await self._model()
        _check_name(asked.model, model)
        prompt = ChatPrompt(await asyncio.to_thread(_tokens, asked, model))
        return self._answer(TextForm, asked, model, prompt, request.headers.get(TRACEPARENT, ""))

    async def _model(self) -> ServedModel:
        try:
            return await self._source.model()
        except MoaError as error:  # such as a missing file, which is not this request's fault
            raise request_error(error, status=503) from None

    def _model_fields(self, model: ServedModel) -> Mapping[str, Any]:
        return {"id": model.name, "object": "model", "created": self._since, "owned_by": "moa"}

    def _answer(
        self, form: Form, asked: AnswerRequest, model: ServedModel, prompt: ChatPrompt, traceparent: str
    ) -> Response:
        options = asked.options(model.sampling, model.vocab_size)
        if prompt.constraint is not None:
            options = replace(options, constraint=prompt.constraint)
        _check_length(len(prompt.tokens), model.context_tokens)
        heading = ResponseHeader(
            form.prefix + secrets.token_hex(12),
            int(time.time()),
            model.name,
            model.fingerprint,
            len(prompt.tokens),
            options.seed or 0,
        )
        parts = decoder = None
        if prompt.markup is not None:
            parts = ToolAnswer(prompt.markup, heading.identifier)
            if prompt.markup.has_any(model.special_tokens):
                decoder = AnswerDecoder(AnswerText(options=options), model.spelled)
        start = partial(self._start, asked, lambda: model.begin(prompt.tokens, options, traceparent), decoder)
        if not asked.stream:
            return WholeResponse(start, self._closing, partial(whole_answer, form, heading, parts))
        chunks = Chunks(
            form,
            heading,
            with_usage=asked.stream_options is not None and asked.stream_options.include_usage,
            with_provisional=asked.moa.provisional,
            parts=parts,
        )
        return StreamedResponse(start, self._closing, chunks, self._settings.keep_alive_seconds)

    def _start(self, asked: AnswerRequest, begin: Callable[[], OneAnswer], decoder: AnswerDecoder | None) -> Answering:
        settings = self._settings
        unverified = asked.moa.unverified or settings.unverified
        progress = AnswerProgress(
            ends_unverified=unverified == "end", settle_seconds=settings.settle_seconds, decoder=decoder
        )
        return Answering(begin, progress, self._slots)


def _check_name(name: str, model: ServedModel) -> None:
    if name not in (model.name, DEFAULT_MODEL):
        raise RequestError(
            404,
            f"There is no model {name[:200]!r} here. Ask for {model.name!r}, or {DEFAULT_MODEL!r}.",
            param="model",
            code="model_not_found",
        )


def _tokens(asked: TextRequest, model: ServedModel) -> list[int]:
    if isinstance(asked.prompt, str):
        return model.encode(asked.prompt)
    if not all(0 <= token < model.vocab_size for token in asked.prompt):
        raise RequestError(
            400,
            f"prompt: expected ids of tokens from 0 to {model.vocab_size - 1}.",
            param="prompt",
            code="invalid_value",
        )
    return asked.prompt


def _check_length(prompt: int, context: int) -> None:
    """Refuses what leaves no room for an answer.

    Raises:
        ContextLengthError: the prompt fills the context.
    """
    if prompt >= context:
        raise ContextLengthError(
            f"The prompt has {prompt} tokens, the context {context} in all.", hint="Shorten the prompt."
        )

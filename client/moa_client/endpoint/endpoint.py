"""Answers requests, whichever API they are of."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from moa_shared.errors import ContextLengthError, MoaError
from moa_shared.sampling.chances import TokenChances
from moa_shared.tracing import TRACEPARENT
from starlette.requests import Request
from starlette.responses import Response

from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import AnswerText
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_slots import MOST_WAITING, AnswerSlots
from moa_client.endpoint.answer_source import AnswerSource, Embeddings, OneAnswer, ServedModel
from moa_client.endpoint.answering import Answering
from moa_client.endpoint.asked import AnswerHeader, AnyProgress, Asked, AskedAnswer, AskedChoices, Form, Prompt
from moa_client.endpoint.choices import ChoicesAnswering, choice_seed
from moa_client.endpoint.progress import AnswerProgress
from moa_client.endpoint.response import KEEP_ALIVE_SECONDS, Following, StreamedResponse, WholeResponse
from moa_client.endpoint.stop_search import StopSearch
from moa_client.endpoint.told_tokens import ToldTokens
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

    settle_seconds: float = 30.0
    unverified: Literal["end", "fail"] = "fail"
    max_requests: int = 8
    most_waiting: int = MOST_WAITING
    keep_alive_seconds: float = KEEP_ALIVE_SECONDS


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks, and how one of its answers is chosen.

    Args:
        identifier: of the answer, without a prefix; `created`: in seconds since 1970.
        traceparent: of the program's span; empty: none.
    """

    model: ServedModel
    prompt: Prompt
    options: AnswerOptions
    identifier: str
    created: int
    traceparent: str

    @property
    def header(self) -> AnswerHeader:
        """What is known of the answer before it begins."""
        return AnswerHeader(
            self.identifier,
            self.created,
            self.model.name,
            self.model.fingerprint,
            len(self.prompt.tokens),
            self.options.seed or 0,
        )

    def choice(self, index: int) -> Question:
        """The same for one of several answers: with a seed of its own, and ids of calls of their own."""
        options = replace(self.options, seed=choice_seed(self.options.seed or 0, index))
        return replace(self, options=options, identifier=f"{self.identifier}{f'-{index}' if index else ''}")


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
        return self._answer(self._question(model, prompt, asked, request), asked)

    async def choices(self, asked: AskedChoices, request: Request) -> Response:
        """The answers to a request: as many as it asks for, to each of its questions.

        Args:
            request: as it came, for the span that it is part of.

        Raises:
            RequestError: it cannot be answered.
        """
        model = await self.model(asked.model)
        prompts = await asyncio.to_thread(asked.prompts, model)
        questions = [self._question(model, prompt, asked, request) for prompt in prompts]
        choices = [question.choice(index) for question in questions for index in range(asked.n)]
        if len(choices) == 1:
            return self._answer(choices[0], asked)
        headers, parts, starts = zip(*(self._prepare(choice, asked) for choice in choices), strict=True)
        return self._response(asked, partial(ChoicesAnswering, starts), asked.choices_form(headers, parts))

    def _answer(self, question: Question, asked: AskedAnswer) -> Response:
        header, parts, start = self._prepare(question, asked)
        return self._response(asked, start, asked.form(header, parts))

    def _question(self, model: ServedModel, prompt: Prompt, asked: AskedAnswer, request: Request) -> Question:
        options = asked.options(model.sampling, model.vocab_size)
        if prompt.constraint is not None:
            options = replace(options, constraint=prompt.constraint)
        _check_length(prompt, model.context_tokens)
        return Question(
            model, prompt, options, secrets.token_hex(12), int(time.time()), request.headers.get(TRACEPARENT, "")
        )

    def _prepare(
        self, question: Question, asked: AskedAnswer
    ) -> tuple[AnswerHeader, AnswerParts | None, Callable[..., Answering]]:
        """What is known of an answer before it begins, its parts, and what begins it."""
        model, prompt, options = question.model, question.prompt, question.options
        parts = decoder = split = None
        if prompt.markup is not None:
            parts = AnswerParts(prompt.markup, question.identifier)
            split = prompt.markup.split()
            if prompt.markup.has_any(model.special_tokens):
                decoder = AnswerDecoder(AnswerText(options=options), model.spelled)
        decode = _shown(model) if decoder is None else model.spelled
        progress = AnswerProgress(
            ends_unverified=(asked.unverified or self._settings.unverified) == "end",
            settle_seconds=self._settings.settle_seconds,
            decoder=decoder,
            stops=StopSearch(options.stop, model.spelled) if options.stop else None,
            told=ToldTokens(model, decode) if options.chances is not None else None,
            echoed=ToldTokens(model, _prompt_text(model, prompt)) if prompt.is_repeated else None,
            split=split,
        )

        async def repeat() -> None:
            if (echoed := progress.echoed) is None:
                return
            chances: list[TokenChances | None] = [None] * len(prompt.tokens)
            if options.chances is not None:
                free = replace(options, constraint=None)  # only the answer has a form
                chances[1:] = await model.score(prompt.tokens, free, self._settings.settle_seconds)
            await asyncio.to_thread(echoed.fill, prompt.tokens, chances)

        def begin() -> OneAnswer:
            return model.begin(prompt.tokens, options, question.traceparent)

        start = partial(Answering, begin if prompt.is_answered else None, progress, self._slots, repeat)
        return question.header, parts, start

    def _response(
        self, asked: AskedAnswer, start: Callable[[], Following[AnyProgress]], form: Form[AnyProgress]
    ) -> Response:
        if not asked.stream:
            return WholeResponse(start, self._closing, form)
        return StreamedResponse(start, self._closing, form, self._settings.keep_alive_seconds)

    async def embed(self, model: ServedModel, texts: Sequence[Sequence[int]]) -> Embeddings:
        """The vectors of some texts; they wait for their turn as an answer does.

        Raises:
            MoaError: they cannot be had.
        """
        async with self._slots.turn():
            return await model.embed(texts, self._settings.settle_seconds)

    async def count(self, asked: Asked) -> int:
        """The tokens of a request's prompt.

        Raises:
            RequestError: the model cannot be asked this.
        """
        model = await self.model(asked.model)
        return len((await asyncio.to_thread(asked.prompt, model)).tokens)


def _shown(model: ServedModel) -> Callable[[Sequence[int]], str]:
    """Makes the text of an answer, without special tokens."""
    special = frozenset(model.special_tokens.values())
    return lambda tokens: model.decode([token for token in tokens if token not in special])


def _prompt_text(model: ServedModel, prompt: Prompt) -> Callable[[Sequence[int]], str]:
    """Makes the text of a prompt, without the BOS token that a text was given here."""
    first = prompt.tokens[0]
    if not prompt.text or first not in model.special_tokens.values() or prompt.text.startswith(model.decode([first])):
        return model.decode
    return lambda tokens: model.decode([token for token in tokens if token != first])


def _check_length(prompt: Prompt, context: int) -> None:
    """Refuses what leaves no room for an answer.

    Raises:
        ContextLengthError: the prompt fills the context.
    """
    length = len(prompt.tokens)
    if length + prompt.is_answered > context:
        raise ContextLengthError(
            f"The prompt has {length} tokens, the context {context} in all.", hint="Shorten the prompt."
        )

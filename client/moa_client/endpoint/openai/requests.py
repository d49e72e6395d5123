"""What a request asks for: its JSON, checked, as the prompt and the options of the answer. Pure but for a random seed.

Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from moa_shared.errors import ConfigError
from moa_shared.sampling.chances import MOST_LIKELIEST, WantedChances
from moa_shared.sampling.constraint import Constraint
from moa_shared.sampling.defaults import NOTHING_SAID, SamplingDefaults
from moa_shared.sampling.settings import TOKEN_LIMIT
from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from moa_client.conversation.answer_options import API_DEFAULTS, AnswerOptions, draw_seed, token_bias
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import AnswerHeader, Prompt
from moa_client.endpoint.endpoint import DEFAULT_MODEL
from moa_client.endpoint.fields import RequestFields, parsed_request, refused
from moa_client.endpoint.openai.choices_form import OpenAiChoicesForm
from moa_client.endpoint.openai.forms import ChatForm, OpenAiForm, TextForm
from moa_client.endpoint.openai.messages import Message, conversation
from moa_client.endpoint.openai.response_format import ResponseFormat, StructuredOutputs, constraint_of
from moa_client.endpoint.openai.tool_fields import ToolChoiceField, ToolField, tool_offer
from moa_client.endpoint.prompt import chat_prompt
from moa_client.endpoint.refusals import REFUSED
from moa_client.tools.effort import AskedReasoning
from moa_client.tools.offer import ToolOffer
from moa_client.tools.tool import ToolChoice
from moa_client.web.error_form import RequestError

TEXT_TOKENS = 16  # of a completion, if absent
MOST_ARGUMENTS = 4096  # bytes
MOST_MESSAGES = 1000  # each is rendered, and looked for in what was rendered
MOST_CHOICES = 8  # as many as a daemon answers at once, unless it is told otherwise


class StreamOptions(RequestFields):
    """How a stream is sent."""

    include_usage: bool = False


class Extensions(RequestFields):
    """What only this endpoint has.

    Args:
        unverified: what becomes of an answer that the server does not verify in time; None: as the daemon is set.
        provisional: the stream also has text that the server may take back.
        logprobs: those of the model, or after all settings, of the distribution that tokens are drawn from.
    """

    unverified: Literal["end", "fail"] | None = None
    provisional: bool = False
    logprobs: Literal["raw", "processed"] | None = None


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class AnswerRequest(RequestFields):
    """What all kinds of requests have."""

    refused = REFUSED
    model: str = DEFAULT_MODEL
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, allow_inf_nan=False)
    top_p: float | None = Field(None, allow_inf_nan=False)
    top_k: int | None = None
    min_p: float | None = Field(None, allow_inf_nan=False)
    repeat_penalty: float | None = Field(None, allow_inf_nan=False)
    repeat_last_n: int | None = None
    presence_penalty: float = Field(0.0, allow_inf_nan=False)
    frequency_penalty: float = Field(0.0, allow_inf_nan=False)
    logit_bias: dict[str, float] = Field(default_factory=dict)
    loop_guard: bool = True
    seed: int = Field(default_factory=draw_seed, ge=-(1 << 63), lt=1 << 64)
    stop: Annotated[list[str], BeforeValidator(_as_list)] = Field([], max_length=16)
    structured_outputs: StructuredOutputs | None = None
    moa: Extensions = Extensions()

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """What becomes of an answer that the server does not verify in time; None: as the daemon is set."""
        return self.moa.unverified

    @property
    def answers(self) -> int:
        """How many answers it asks for in all."""
        return 1

    @property
    def most_tokens(self) -> int:
        """Of the answer; 0: as the context allows."""
        raise NotImplementedError

    @property
    def likeliest(self) -> int | None:
        """How many of the likeliest tokens are told at each place, with the chances of all tokens; None: no chances."""
        return None

    def constraint(self) -> Constraint | None:
        """The form that the answer must have; None: any.

        Raises:
            RequestError: it cannot have this one.
        """
        raise NotImplementedError

    def options(self, defaults: SamplingDefaults = NOTHING_SAID, vocab_size: int = TOKEN_LIMIT) -> AnswerOptions:
        """The options of the answer; nothing of them is open.

        Args:
            defaults: the model's.
            vocab_size: its token ids are below it.

        Raises:
            RequestError: a value outside its range.
        """
        for stop in self.stop:
            if not 0 < len(stop) <= 64:
                raise refused("stop", "each text must have 1 to 64 characters")
        processed = self.moa.logprobs == "processed"
        chances = None if self.likeliest is None else WantedChances(self.likeliest, processed=processed)
        seed = self.seed % (1 << 64)  # a negative one is another name of a large one
        try:
            options = AnswerOptions(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=seed,
                max_tokens=self.most_tokens,
                stop=tuple(self.stop),
                min_p=self.min_p,
                repeat_penalty=self.repeat_penalty,
                repeat_last_n=self.repeat_last_n,
                presence_penalty=self.presence_penalty,
                frequency_penalty=self.frequency_penalty,
                logit_bias=token_bias(self.logit_bias),
                loop_guard=self.loop_guard,
                constraint=self.constraint(),
                chances=chances,
            ).decided(defaults, API_DEFAULTS)
            options.settings()
        except ConfigError as error:
            param = error.message.partition(" ")[0]
            raise RequestError(400, error.message, param=param, code="invalid_value") from None
        for token, _ in options.logit_bias:
            if token >= vocab_size:
                raise refused("logit_bias", f"expected tokens 0 to {vocab_size - 1}, got {token}")
        return options

    def check(self) -> None:
        """Checks what depends on several parameters.

        Raises:
            RequestError: they do not fit together.
        """
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "only a request with stream: true may have them")
        if self.moa.provisional and not self.stream:
            raise refused("moa.provisional", "only a request with stream: true may ask for it")
        if self.moa.logprobs is not None and self.likeliest is None:
            raise refused("moa.logprobs", "only a request with logprobs may ask for it")
        if self.moa.provisional and self.answers > 1:
            raise refused("moa.provisional", "only a request for one answer may ask for it")


class ChoicesRequest(AnswerRequest):
    """What requests have that may ask for several answers."""

    n: int = Field(1, ge=1, le=MOST_CHOICES)
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    response_format: ResponseFormat | None = None

    @property
    def answers(self) -> int:
        return self.n

    def constraint(self) -> Constraint | None:
        return constraint_of(self.response_format, self.structured_outputs)

    @property
    def _stream_form(self) -> dict[str, bool]:
        """How its stream is sent."""
        with_usage = self.stream_options is not None and self.stream_options.include_usage
        return {"with_usage": with_usage, "with_provisional": self.moa.provisional}

    def form(self, header: AnswerHeader, parts: AnswerParts | None, index: int = 0) -> OpenAiForm:
        """How an answer is sent."""
        raise NotImplementedError

    def choices_form(self, headers: Sequence[AnswerHeader], parts: Sequence[AnswerParts | None]) -> OpenAiChoicesForm:
        """How several answers are sent: in a response of one id, of whose usage each question is a part once."""
        tokens = sum(header.prompt_tokens for header in headers[:: self.n])
        same = [replace(headers[0], seed=header.seed, prompt_tokens=tokens) for header in headers]
        each = zip(same, parts, strict=True)
        return OpenAiChoicesForm([self.form(*answer, index) for index, answer in enumerate(each)])


class ChatRequest(ChoicesRequest):
    """A request for the next message of a chat."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LIKELIEST)
    tools: list[ToolField] = Field(default_factory=list)
    tool_choice: ToolChoiceField = ToolChoice()
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = Field(None, ge=0, lt=1 << 31)
    thinking_budget: int | None = Field(None, ge=0, lt=1 << 31)
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 0

    @property
    def likeliest(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    def offer(self) -> ToolOffer:
        """The tools that the answer may call.

        Raises:
            RequestError: they cannot be offered.
        """
        functions = [tool.function for tool in self.tools]
        return tool_offer(functions, self.tool_choice, is_parallel=self.parallel_tool_calls)

    def reasoning(self) -> AskedReasoning:
        """What is asked of the reasoning before the answer."""
        budget = self.thinking_budget if self.thinking_token_budget is None else self.thinking_token_budget
        return AskedReasoning(self.reasoning_effort, self.enable_thinking, budget, self.chat_template_kwargs)

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        return chat_prompt(conversation(self.messages), self.offer(), model, self.reasoning(), self.constraint())

    def prompts(self, model: ServedModel) -> list[Prompt]:
        """All that the model is asked: one question."""
        return [self.prompt(model)]

    def form(self, header: AnswerHeader, parts: AnswerParts | None, index: int = 0) -> ChatForm:
        """How the answer is sent."""
        return ChatForm(header, parts, index, **self._stream_form)

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refused("max_tokens", "it is the older name of max_completion_tokens: give one of them")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("top_logprobs", "only a request with logprobs: true may have it")
        self._check_reasoning()
        if self.messages[-1].role == "assistant":
            raise refused(
                f"messages[{len(self.messages) - 1}].role",
                "the last message must not be from assistant: answers are not continued, and a second one would be "
                "unlike what models were trained on",
            )
        conversation(self.messages)
        if self.offer().tools:
            self._check_with_tools()

    def _check_reasoning(self) -> None:
        if self.reasoning_effort is not None and self.enable_thinking is not None:
            raise refused("enable_thinking", "reasoning_effort says how much the model reasons: give one of them")
        if self.thinking_budget is not None and self.thinking_token_budget is not None:
            raise refused("thinking_budget", "it is another name of thinking_token_budget: give one of them")
        if len(json.dumps(self.chat_template_kwargs)) > MOST_ARGUMENTS:
            raise refused("chat_template_kwargs", f"at most {MOST_ARGUMENTS} bytes of JSON are allowed")

    def _check_with_tools(self) -> None:
        if self.structured_outputs is not None:
            words = "an answer of this form calls no tools: use response_format, or tool_choice: 'none'"
            raise refused("structured_outputs", words)
        if self.moa.provisional:
            raise refused("moa.provisional", "calls are not sent before they are verified: do not offer tools with it")


def _several_prompts(value: object) -> object:
    """The list of prompts, which may also be given as the only one of it."""
    prompts = value if isinstance(value, list) and any(isinstance(each, str | list) for each in value) else [value]
    if not all(isinstance(prompt, str | list) and prompt for prompt in prompts):
        words = "expected a text that is not empty, or the ids of its tokens, or a list of several of these"
        raise PydanticCustomError("prompt", words)
    return prompts


def _unless_false(value: object) -> object:
    """None for false, with which programs say that they want none."""
    return None if value is False else value


class TextRequest(ChoicesRequest):
    """A request for the continuation of one text or more."""

    texts: Annotated[list[str | list[int]], BeforeValidator(_several_prompts)] = Field(alias="prompt")
    max_tokens: int | None = Field(None, ge=0, lt=1 << 31)
    echo: bool = False
    logprobs: Annotated[int | None, BeforeValidator(_unless_false)] = Field(None, ge=0, le=MOST_LIKELIEST)

    @property
    def answers(self) -> int:
        return len(self.texts) * self.n

    @property
    def most_tokens(self) -> int:
        return TEXT_TOKENS if self.max_tokens is None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        return self.logprobs

    def prompts(self, model: ServedModel) -> list[Prompt]:
        """All that the model is asked."""
        return [self._prompt(model, text) for text in self.texts]

    def _prompt(self, model: ServedModel, text: str | list[int]) -> Prompt:
        is_answered = self.max_tokens != 0
        if isinstance(text, str):
            return Prompt(model.encode(text), text=text, is_repeated=self.echo, is_answered=is_answered)
        if not all(0 <= token < model.vocab_size for token in text):
            raise refused("prompt", f"expected ids of tokens from 0 to {model.vocab_size - 1}")
        return Prompt(text, is_repeated=self.echo, is_answered=is_answered)

    def check(self) -> None:
        super().check()
        if self.answers > MOST_CHOICES:
            words = f"{self.answers} answers are asked for, {self.n} of each text, and at most {MOST_CHOICES} are given"
            raise refused("prompt", f"{words}: send fewer texts at once (lm-eval: batch_size={MOST_CHOICES})")
        if self.max_tokens == 0 and not self.echo:
            raise refused("max_tokens", "only a request with echo: true may want no token")

    def form(self, header: AnswerHeader, parts: AnswerParts | None, index: int = 0) -> TextForm:
        """How the answer is sent."""
        return TextForm(header, index=index, **self._stream_form)


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return parsed_request(ChatRequest, body)


def text_request(body: Mapping[str, Any]) -> TextRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return parsed_request(TextRequest, body)

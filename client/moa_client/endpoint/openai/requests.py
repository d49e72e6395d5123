"""What a request asks for: its JSON, checked, as the prompt and the options of the answer. Pure but for a random seed.

Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from moa_shared.errors import ConfigError
from moa_shared.sampling.defaults import NOTHING_SAID, SamplingDefaults
from moa_shared.sampling.settings import TOKEN_LIMIT
from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

from moa_client.conversation.answer_options import API_DEFAULTS, AnswerOptions, draw_seed, token_bias
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import AnswerHeader, Prompt
from moa_client.endpoint.endpoint import DEFAULT_MODEL
from moa_client.endpoint.fields import RequestFields, refused
from moa_client.endpoint.openai.forms import ChatForm, TextForm
from moa_client.endpoint.openai.message_fields import used_messages
from moa_client.endpoint.openai.messages import Message, conversation
from moa_client.endpoint.openai.parameters import Api, used_parameters
from moa_client.endpoint.openai.response_format import ResponseFormat, StructuredOutputs, constraint_of
from moa_client.endpoint.openai.tool_fields import ToolChoiceField, ToolField, tool_offer
from moa_client.endpoint.prompt import chat_prompt
from moa_client.tools.effort import AskedReasoning
from moa_client.tools.offer import ToolOffer
from moa_client.tools.tool import ToolChoice
from moa_client.web.error_form import RequestError

TEXT_TOKENS = 16  # of a completion, if absent
MOST_ARGUMENTS = 4096  # bytes
MOST_MESSAGES = 1000  # each is rendered, and looked for in what was rendered
AnyRequest = TypeVar("AnyRequest", bound="AnswerRequest")
ROLES = "expected system, developer, user, assistant or tool"


class StreamOptions(RequestFields):
    """How a stream is sent."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Extensions(RequestFields):
    """What only this endpoint has.

    Args:
        unverified: what becomes of an answer that the server does not verify in time; None: as the daemon is set.
        provisional: the stream also has text that the server may take back.
    """

    unverified: Literal["end", "fail"] | None = None
    provisional: bool = False


def _as_list(stop: object) -> object:
    return [stop] if isinstance(stop, str) else stop


class AnswerRequest(RequestFields):
    """What both kinds of requests have."""

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
    max_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    stop: Annotated[list[str], BeforeValidator(_as_list)] = Field([], max_length=16)
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    moa: Extensions = Extensions()

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """What becomes of an answer that the server does not verify in time; None: as the daemon is set."""
        return self.moa.unverified

    @property
    def most_tokens(self) -> int:
        """Of the answer; 0: as the context allows."""
        return self.max_tokens or 0

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
        constraint = constraint_of(self.response_format, self.structured_outputs)
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
                constraint=constraint,
            ).decided(defaults, API_DEFAULTS)
            options.settings()
        except ConfigError as error:
            param = error.message.partition(" ")[0]
            raise RequestError(400, error.message, param=param, code="invalid_value") from None
        for token, _ in options.logit_bias:
            if token >= vocab_size:
                raise refused("logit_bias", f"expected tokens 0 to {vocab_size - 1}, got {token}")
        return options

    @property
    def _stream_form(self) -> dict[str, bool]:
        """How its stream is sent."""
        with_usage = self.stream_options is not None and self.stream_options.include_usage
        return {"with_usage": with_usage, "with_provisional": self.moa.provisional}

    def check(self) -> None:
        """Checks what depends on several parameters.

        Raises:
            RequestError: they do not fit together.
        """
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options", "only a request with stream: true may have them")
        if self.moa.provisional and not self.stream:
            raise refused("moa.provisional", "only a request with stream: true may ask for it")


class ChatRequest(AnswerRequest):
    """A request for the next message of a chat."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, lt=1 << 31)
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

    def offer(self) -> ToolOffer:
        """The tools that the answer may call.

        Raises:
            RequestError: they cannot be offered.
        """
        return tool_offer(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls)

    def reasoning(self) -> AskedReasoning:
        """What is asked of the reasoning before the answer."""
        budget = self.thinking_budget if self.thinking_token_budget is None else self.thinking_token_budget
        return AskedReasoning(self.reasoning_effort, self.enable_thinking, budget, self.chat_template_kwargs)

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        form = constraint_of(self.response_format, self.structured_outputs)
        return chat_prompt(conversation(self.messages), self.offer(), model, self.reasoning(), form)

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> ChatForm:
        """How the answer is sent."""
        return ChatForm(header, parts, **self._stream_form)

    def check(self) -> None:
        super().check()
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise refused("max_tokens", "it is the older name of max_completion_tokens: give one of them")
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
        if constraint_of(self.response_format, self.structured_outputs) is not None:
            param = "response_format" if self.structured_outputs is None else "structured_outputs"
            raise refused(param, "an answer of this form calls no tools: give one of them, or tool_choice: 'none'")
        if self.moa.provisional:
            raise refused("moa.provisional", "calls are not sent before they are verified: do not offer tools with it")


def _one_prompt(value: object) -> object:
    """The prompt, or the only one of a list of prompts."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, list) and any(isinstance(each, str | list) for each in value):
        raise PydanticCustomError("prompt", "expected one prompt: send several requests")
    if not isinstance(value, str | list) or not value:
        raise PydanticCustomError("prompt", "expected a text that is not empty, or the ids of its tokens")
    return value


class TextRequest(AnswerRequest):
    """A request for the continuation of a text."""

    text: Annotated[str | list[int], BeforeValidator(_one_prompt)] = Field(alias="prompt")

    @property
    def most_tokens(self) -> int:
        return self.max_tokens or TEXT_TOKENS

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        if isinstance(self.text, str):
            return Prompt(model.encode(self.text))
        if not all(0 <= token < model.vocab_size for token in self.text):
            raise refused("prompt", f"expected ids of tokens from 0 to {model.vocab_size - 1}")
        return Prompt(self.text)

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> TextForm:
        """How the answer is sent."""
        return TextForm(header, **self._stream_form)


def chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return _parsed(ChatRequest, {**body, "messages": used_messages(body.get("messages"))}, "chat")


def text_request(body: Mapping[str, Any]) -> TextRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return _parsed(TextRequest, body, "completions")


def _parsed(kind: type[AnyRequest], body: Mapping[str, Any], api: Api) -> AnyRequest:
    try:
        request = kind.model_validate(used_parameters(body, api))
    except ValidationError as error:
        raise _first_problem(error) from None
    request.check()
    return request


def _first_problem(error: ValidationError) -> RequestError:
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"])
    if first["type"] == "missing":
        return RequestError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return RequestError(400, f"{param} is not supported.", param=param, code="unsupported_parameter")
    if first["loc"][-1] == "role":
        return refused(param, ROLES)
    words = first["msg"].removesuffix(".").replace("Input should be", "expected").replace(" after validation", "")
    words = re.sub(r"a valid dictionary or instance of \w+", "a JSON object", words).replace("expected F", "expected f")
    return refused(param, words[:1].lower() + words[1:])


def _path(loc: tuple[int | str, ...]) -> str:
    """Such as messages[0].role; without the names of types that alternatives have in it."""
    path = ""
    if loc[0] == "response_format":
        loc = (loc[0], *loc[2:])
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "list[int]"):
            path += f".{part}" if path else part
    return path

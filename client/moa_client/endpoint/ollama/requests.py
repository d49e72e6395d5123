"""What a request of ollama's API asks for: its JSON, checked, as the prompt and the options of the answer.

Pure but for a random seed. Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import Constraint, ConstraintKind
from moa_shared.sampling.defaults import NOTHING_SAID, SamplingDefaults
from moa_shared.sampling.settings import REPEAT_LAST_N, TOKEN_LIMIT
from pydantic import BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.conversation.answer_options import AnswerOptions, draw_seed
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import AnswerHeader, Fields, Prompt
from moa_client.endpoint.endpoint import DEFAULT_MODEL
from moa_client.endpoint.fields import RequestFields, parsed_request, refused
from moa_client.endpoint.ollama.forms import ChatForm, OllamaForm, TextForm
from moa_client.endpoint.ollama.messages import Message, conversation
from moa_client.endpoint.openai.tool_fields import ToolField, tool_offer
from moa_client.endpoint.prompt import chat_prompt
from moa_client.endpoint.refusals import REFUSED
from moa_client.tools.effort import AskedReasoning
from moa_client.tools.offer import ToolOffer
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolChoice
from moa_client.web.error_form import RequestError

MOST_MESSAGES = 1000  # each is rendered, and looked for in what was rendered
EFFORTS = ("low", "medium", "high", "max")
LATEST = ":latest"  # the tag that clients add to a name without one
# ollama's: programs that leave them out rely on them
DEFAULTS = SamplingDefaults(0.8, 40, 0.9, 0.0, 1.1, REPEAT_LAST_N)


class OptionFields(RequestFields):
    """How an answer is chosen, and where it ends."""

    refused = REFUSED
    temperature: float | None = Field(None, allow_inf_nan=False)
    top_k: int | None = None
    top_p: float | None = Field(None, allow_inf_nan=False)
    min_p: float | None = Field(None, allow_inf_nan=False)
    seed: int = -1
    num_predict: int = Field(-1, lt=1 << 31)
    stop: Annotated[list[str], BeforeValidator(lambda stop: [stop] if isinstance(stop, str) else stop)] = Field(
        default_factory=list, max_length=16
    )
    repeat_penalty: float | None = Field(None, allow_inf_nan=False)
    repeat_last_n: int | None = None
    presence_penalty: float = Field(0.0, allow_inf_nan=False)
    frequency_penalty: float = Field(0.0, allow_inf_nan=False)


def _named(name: object) -> object:
    return name.removesuffix(LATEST) if isinstance(name, str) else name


def _format(value: object) -> object:
    if isinstance(value, dict) or value in ("", "json"):
        return value
    raise PydanticCustomError("format", "expected 'json' or a JSON schema")


def _think(value: object) -> object:
    if isinstance(value, bool) or value in EFFORTS:
        return value
    raise PydanticCustomError("think", "expected true, false, {efforts}", {"efforts": ", ".join(EFFORTS)})


class OllamaRequest(RequestFields):
    """What both kinds of requests have."""

    refused = REFUSED
    model: Annotated[str, BeforeValidator(_named)] = DEFAULT_MODEL
    stream: bool = True
    format: Annotated[dict[str, Any] | str, PlainValidator(_format)] = ""
    options_: OptionFields = Field(default_factory=OptionFields, alias="options")
    think: Annotated[bool | str | None, PlainValidator(_think)] = None

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """As the daemon is set."""
        return None

    @property
    def is_empty(self) -> bool:
        """Whether it only asks for the model to be loaded."""
        raise NotImplementedError

    @property
    def empty_answer(self) -> Fields:
        """The fields of the answer to such a request."""
        raise NotImplementedError

    def options(self, defaults: SamplingDefaults = NOTHING_SAID, vocab_size: int = TOKEN_LIMIT) -> AnswerOptions:
        """The options of the answer; nothing of them is open."""
        given = self.options_
        try:
            options = AnswerOptions(
                temperature=given.temperature,
                top_k=given.top_k,
                top_p=given.top_p,
                seed=given.seed if given.seed >= 0 else draw_seed(),
                max_tokens=max(0, given.num_predict),
                stop=tuple(given.stop),
                min_p=given.min_p,
                repeat_penalty=given.repeat_penalty,
                repeat_last_n=given.repeat_last_n,
                presence_penalty=given.presence_penalty,
                frequency_penalty=given.frequency_penalty,
                constraint=self.constraint(),
            ).decided(defaults, DEFAULTS)
            options.settings()
        except ConfigError as error:
            raise RequestError(400, f"options: {error.message}", param="options", code="invalid_value") from None
        return options

    def reasoning(self) -> AskedReasoning:
        """What is asked of the reasoning before the answer."""
        if isinstance(self.think, str):
            return AskedReasoning("xhigh" if self.think == "max" else self.think, param="think")
        return AskedReasoning(is_on=self.think, param="think")

    def constraint(self) -> Constraint | None:
        """The form of the answer.

        Raises:
            ConfigError: it cannot be one.
        """
        if not self.format:
            return None
        if self.format == "json":
            return Constraint(ConstraintKind.JSON_OBJECT)
        return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(self.format, ensure_ascii=False))


class ChatRequest(OllamaRequest):
    """A request for the next message of a chat."""

    messages: list[Message] = Field(default_factory=list, max_length=MOST_MESSAGES)
    tools: list[ToolField] = Field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        return not self.messages

    @property
    def empty_answer(self) -> Fields:
        return {"message": {"role": "assistant", "content": ""}}

    def offer(self) -> ToolOffer:
        """The tools that the answer may call.

        Raises:
            RequestError: they cannot be offered.
        """
        return tool_offer([tool.function for tool in self.tools], ToolChoice(), is_parallel=True)

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        return chat_prompt(conversation(self.messages), self.offer(), model, self.reasoning(), self.constraint())

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> OllamaForm:
        """How the answer is sent."""
        return ChatForm(header, parts, shows_thinking=self.think is not False)

    def check(self) -> None:
        if self.messages and self.messages[-1].role == "assistant":
            raise refused(
                f"messages[{len(self.messages) - 1}].role",
                "the last message must not be from assistant: answers are not continued",
            )
        conversation(self.messages)
        self.offer()


class TextRequest(OllamaRequest):
    """A request for the answer to a prompt."""

    text: str = Field("", alias="prompt")
    system: str = ""
    raw: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.text

    @property
    def empty_answer(self) -> Fields:
        return {"response": ""}

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        if self.raw:
            return Prompt(model.encode(self.text))
        system = [ChatMessage("system", self.system)] if self.system else []
        messages = [*system, ChatMessage("user", self.text)]
        return chat_prompt(messages, ToolOffer(), model, self.reasoning(), self.constraint())

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> OllamaForm:
        """How the answer is sent."""
        return TextForm(header, parts, shows_thinking=self.think is not False)

    def check(self) -> None:
        if self.raw and self.system:
            raise refused("system", "raw uses no template: write it into the prompt")


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

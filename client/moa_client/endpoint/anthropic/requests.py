"""What a request of Anthropic's API asks for: its JSON, checked, as the prompt and the options of the answer.

Pure but for a random seed. Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import Constraint, ConstraintKind
from moa_shared.sampling.defaults import NOTHING_SAID, SamplingDefaults
from moa_shared.sampling.settings import TOKEN_LIMIT
from pydantic import Field

from moa_client.conversation.answer_options import API_DEFAULTS, AnswerOptions, draw_seed
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.anthropic.forms import MessageForm
from moa_client.endpoint.anthropic.messages import BLOCKS, Message, conversation
from moa_client.endpoint.asked import AnswerHeader, Prompt
from moa_client.endpoint.endpoint import DEFAULT_MODEL
from moa_client.endpoint.fields import RequestFields, TextParts, missing, parsed_request, refused, refusing
from moa_client.endpoint.prompt import chat_prompt
from moa_client.endpoint.refusals import REFUSED
from moa_client.tools.effort import AS_IT_IS, AskedReasoning
from moa_client.tools.offer import ToolOffer, offer_of
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import ChoiceMode, Tool, ToolChoice, check_tools
from moa_client.web.error_form import RequestError

MOST_MESSAGES = 1000  # each is rendered, and looked for in what was rendered
_MODES = {"auto": ChoiceMode.AUTO, "any": ChoiceMode.REQUIRED, "tool": ChoiceMode.NAMED, "none": ChoiceMode.NONE}


class ToolField(RequestFields):
    """A tool of the program; there are no others."""

    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class ToolChoiceField(RequestFields):
    """Whether the answer may, must or must not call tools."""

    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingField(RequestFields):
    """Whether and how much the model is to think."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] = "summarized"


class OutputFormat(RequestFields):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestFields):
    """The form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class ContextEdit(RequestFields):
    """What is left out of the conversation: thinking, and it always is."""

    type: Literal["clear_thinking_20251015"]


class ContextManagement(RequestFields):
    """What is left out of the conversation."""

    edits: list[ContextEdit] = Field(default_factory=list)


class Extensions(RequestFields):
    """What only this endpoint has.

    Args:
        unverified: what becomes of an answer that the server does not verify in time; None: as the daemon is set.
    """

    unverified: Literal["end", "fail"] | None = None


class MessagesRequest(RequestFields):
    """A request for the next message of a chat."""

    refused = REFUSED
    model: str = DEFAULT_MODEL
    max_tokens: int = Field(ge=1, lt=1 << 31)
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    system: TextParts = Field(default_factory=list)
    stream: bool = False
    temperature: float | None = Field(None, allow_inf_nan=False)
    top_p: float | None = Field(None, allow_inf_nan=False)
    top_k: int | None = None
    stop_sequences: list[str] = Field(default_factory=list, max_length=16)
    tools: list[ToolField] = Field(default_factory=list)
    tool_choice: ToolChoiceField = ToolChoiceField()
    thinking: ThinkingField = ThinkingField(type="adaptive")
    output_config: OutputConfig = OutputConfig()
    context_management: ContextManagement = ContextManagement()
    seed: int = Field(default_factory=draw_seed, ge=0, lt=1 << 64)
    moa: Extensions = Extensions()

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """What becomes of an answer that the server does not verify in time; None: as the daemon is set."""
        return self.moa.unverified

    def offer(self) -> ToolOffer:
        """The tools that the answer may call.

        Raises:
            RequestError: they cannot be offered.
        """
        tools = []
        for number, field in enumerate(self.tools):
            with refusing(f"tools[{number}]"):
                tools.append(Tool(field.name, field.description, field.input_schema))
        with refusing("tools"):
            check_tools(tools)
        choice = self.tool_choice
        with refusing("tool_choice"):
            return offer_of(
                tools, ToolChoice(_MODES[choice.type], choice.name), is_parallel=not choice.disable_parallel_tool_use
            )

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        messages = conversation(self.system, self.messages)
        return chat_prompt(messages, self.offer(), model, self._reasoning(model), self._constraint())

    def _reasoning(self, model: ServedModel) -> AskedReasoning:
        """What is asked of the reasoning before the answer; nothing if the model has none: agents always ask."""
        if find_thinking(model.chat_template) is None:
            return AS_IT_IS
        is_on = {"enabled": True, "disabled": False}.get(self.thinking.type)
        budget = self.thinking.budget_tokens if is_on else None
        return AskedReasoning(is_on=is_on, budget=budget, param="thinking", budget_param="thinking.budget_tokens")

    def options(self, defaults: SamplingDefaults = NOTHING_SAID, vocab_size: int = TOKEN_LIMIT) -> AnswerOptions:
        """The options of the answer; nothing of them is open."""
        for stop in self.stop_sequences:
            if not 0 < len(stop) <= 64:
                raise refused("stop_sequences", "each text must have 1 to 64 characters")
        try:
            options = AnswerOptions(
                temperature=self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                seed=self.seed,
                max_tokens=self.max_tokens,
                stop=tuple(self.stop_sequences),
                constraint=self._constraint(),
            ).decided(defaults, API_DEFAULTS)
            options.settings()
        except ConfigError as error:
            param = error.message.partition(" ")[0]
            raise RequestError(400, error.message, param=param, code="invalid_value") from None
        return options

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> MessageForm:
        """How the answer is sent."""
        return MessageForm(header, parts, shows_thinking=self.thinking.display != "omitted")

    def check(self) -> None:
        """Checks what depends on several parameters.

        Raises:
            RequestError: they do not fit together.
        """
        if self.messages[-1].role == "assistant":
            raise refused(
                f"messages[{len(self.messages) - 1}].role",
                "the last message must not be from assistant: answers are not continued",
            )
        if self.thinking.type == "enabled" and self.thinking.budget_tokens is None:
            raise missing("thinking.budget_tokens")
        conversation(self.system, self.messages)
        self.offer()

    def _constraint(self) -> Constraint | None:
        if self.output_config.format is None:
            return None
        with refusing("output_config.format"):
            text = json.dumps(self.output_config.format.json_schema, ensure_ascii=False)
            return Constraint(ConstraintKind.JSON_SCHEMA, text)


def messages_request(body: Mapping[str, Any]) -> MessagesRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return parsed_request(MessagesRequest, body, BLOCKS)


def count_request(body: Mapping[str, Any]) -> MessagesRequest:
    """The request of a body that asks for the length of its prompt only.

    Raises:
        RequestError: it cannot be followed.
    """
    return messages_request({**body, "max_tokens": 1})

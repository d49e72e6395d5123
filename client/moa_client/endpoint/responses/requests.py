"""What a request for a response asks for: its JSON, checked, as the prompt and the options of the answer.

Pure but for a random seed. Every value that cannot be used is refused with the name of its parameter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from moa_shared.sampling.constraint import Constraint
from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import Prompt
from moa_client.endpoint.fields import RequestFields, parsed_request, refused
from moa_client.endpoint.openai.requests import AnswerRequest
from moa_client.endpoint.openai.response_format import (
    JsonObjectFormat,
    JsonSchemaFormat,
    NamedSchema,
    TextFormat,
    constraint_of,
)
from moa_client.endpoint.openai.tool_fields import FunctionField, tool_offer
from moa_client.endpoint.prompt import chat_prompt
from moa_client.endpoint.refusals import REFUSED, Refusal
from moa_client.endpoint.responses.items import ITEMS, Item, Items, conversation
from moa_client.tools.effort import AskedReasoning
from moa_client.tools.offer import ToolOffer
from moa_client.tools.tool import ChoiceMode, ToolChoice

MOST_ITEMS = 1000  # each is rendered; those of the responses that are continued count too
MOST_NOTES = 16  # of metadata, as OpenAI has it
NOTE_NAME, NOTE = 64, 512  # characters of a name and of its text


class NamedSchemaFormat(NamedSchema):
    """JSON of a schema, in one object."""

    type: Literal["json_schema"]


class TextConfig(RequestFields):
    """The form of the answer's text."""

    refused: ClassVar[Mapping[str, Refusal]] = {"verbosity": REFUSED["verbosity"]}
    format: Annotated[TextFormat | JsonObjectFormat | NamedSchemaFormat, Field(discriminator="type")] = TextFormat(
        type="text"
    )


class ReasoningConfig(RequestFields):
    """The reasoning before the answer; there are no summaries of it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class FlatTool(FunctionField):
    """A function that may be called; there are no other tools."""

    type: Literal["function"]


def _choice(value: object) -> ToolChoice:
    match value:
        case "auto" | "none" | "required":
            return ToolChoice(ChoiceMode(value))
        case {"type": "function", "name": str(name)}:
            return ToolChoice(ChoiceMode.NAMED, name)
    raise PydanticCustomError("tool_choice", "expected 'auto', 'none', 'required' or {'type': 'function', 'name': ...}")


class ResponseRequest(AnswerRequest):
    """A request for a response."""

    input: Items = Field(min_length=1, max_length=MOST_ITEMS)
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    metadata: dict[Annotated[str, Field(max_length=NOTE_NAME)], Annotated[str, Field(max_length=NOTE)]] = Field(
        default_factory=dict, max_length=MOST_NOTES
    )
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    max_output_tokens: int | None = Field(None, ge=1, lt=1 << 31)
    tools: list[FlatTool] = Field(default_factory=list)
    tool_choice: Annotated[ToolChoice, PlainValidator(_choice)] = ToolChoice()
    parallel_tool_calls: bool = True

    @property
    def most_tokens(self) -> int:
        return self.max_output_tokens or 0

    def constraint(self) -> Constraint | None:
        wanted = self.text.format
        nested = (
            JsonSchemaFormat(type="json_schema", json_schema=wanted)
            if isinstance(wanted, NamedSchemaFormat)
            else wanted
        )
        return constraint_of(nested, self.structured_outputs, "text.format")

    def offer(self) -> ToolOffer:
        """The tools that the answer may call.

        Raises:
            RequestError: they cannot be offered.
        """
        return tool_offer(self.tools, self.tool_choice, is_parallel=self.parallel_tool_calls, at="")

    def prompt_after(self, before: Sequence[Item], model: ServedModel) -> Prompt:
        """What the model is asked.

        Args:
            before: the items of the responses that this one continues.

        Raises:
            RequestError: the model cannot be asked this.
        """
        asked = AskedReasoning(self.reasoning.effort, param="reasoning.effort")
        messages = conversation(before, self.input, self.instructions)
        return chat_prompt(messages, self.offer(), model, asked, self.constraint())

    def check(self) -> None:
        super().check()
        if self.stream_options is not None and self.stream_options.include_usage:
            raise refused("stream_options.include_usage", "a response says how many tokens there were in any case")
        if self.moa.provisional:
            raise refused("moa.provisional", "only streams of /v1/chat/completions and /v1/completions have it")
        if self.previous_response_id is None:
            conversation((), self.input, self.instructions)
        if self.offer().tools and self.structured_outputs is not None:
            raise refused("structured_outputs", "an answer of this form calls no tools: use text.format")


def response_request(body: Mapping[str, Any]) -> ResponseRequest:
    """The request of a body.

    Raises:
        RequestError: it cannot be followed.
    """
    return parsed_request(ResponseRequest, body, ITEMS)

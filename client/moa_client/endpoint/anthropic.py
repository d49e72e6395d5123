"""Anthropic's API of messages, in and out. Pure but for a random seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from moa_shared.protocol.finish_rule import Finish
from pydantic import BeforeValidator, Field
from pydantic_core import from_json

from moa_client.conversation.options import AnswerOptions, draw_seed
from moa_client.endpoint.answer import Answer, AnswerHeader, Fields, Form, event
from moa_client.endpoint.ask import ChatAsk, Messages, checked, schema_form
from moa_client.endpoint.fields import (
    DEFAULT_MODEL,
    MOST_MESSAGES,
    REFUSED,
    Paragraphs,
    RequestFields,
    missing,
    refuse_continuing,
    refused,
    refusing,
)
from moa_client.endpoint.openai_fields import MOST_STOPS, Extensions, Finite, Limit, check_stops
from moa_client.tools.answer_reader import CallPiece, Piece
from moa_client.tools.thinking import AskedReasoning, ReasoningPiece, TextPiece
from moa_client.tools.tool import ChoiceMode, Tool, ToolCall, ToolOffer, ToolResult, check_tools, offer_of
from moa_client.tools.turns import ChatMessage
from moa_client.web.error_form import RequestError

ERROR = "Error: "  # before a result that is one: chat templates have no other place for it
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_MODES = {"auto": ChoiceMode.AUTO, "any": ChoiceMode.REQUIRED, "tool": ChoiceMode.NAMED, "none": ChoiceMode.NONE}


class TextBlock(RequestFields):
    type: Literal["text"]
    text: str


class ToolUseBlock(RequestFields):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(RequestFields):
    type: Literal["tool_result"]
    tool_use_id: str
    content: Paragraphs = ""
    is_error: bool = False


class ThinkingBlock(RequestFields):
    """What a model thought before an earlier answer, which is not given back to it."""

    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


class Message(RequestFields):
    role: Literal["user", "assistant", "system"]
    content: Annotated[
        list[Block],
        BeforeValidator(lambda content: [{"type": "text", "text": content}] if isinstance(content, str) else content),
    ]


def conversation(system: str, messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Messages of one role that follow each other become one. Templates know one system prompt, at the beginning: what the
    system says later becomes the user's.
    """
    leading = next((number for number, each in enumerate(messages) if each.role != "system"), len(messages))
    blocks, said = [block for message in messages[:leading] for block in message.content], Messages()
    if prompt := _paragraphs([system, *(block.text for block in blocks if isinstance(block, TextBlock))]):
        said.made.append(ChatMessage("system", prompt))
    for is_answer, same in groupby(enumerate(messages), key=lambda each: each[1].role == "assistant"):
        calls: list[ToolCall] = []
        texts: list[str] = []
        for number, message in same:
            path = f"messages[{number}].content"
            if not message.content and not is_answer:  # an answer may have been empty
                raise refused(path, "expected a text, or blocks")
            for place, block in enumerate(message.content):
                at = f"{path}[{place}]"
                match block:
                    case TextBlock() if number >= leading:
                        texts.append(block.text)
                    case ToolUseBlock() if not is_answer:
                        raise refused(at, "only a message from assistant has calls")
                    case ToolUseBlock():
                        calls.append(said.call(at, block.id, block.name, json.dumps(block.input, ensure_ascii=False)))
                    case ToolResultBlock() if is_answer:
                        raise refused(at, "only a message from user answers a call")
                    case ToolResultBlock():
                        text = ERROR * block.is_error + block.content
                        said.add_result(f"{at}.tool_use_id", block.tool_use_id, text)
        if is_answer:  # its text is as it was written
            said.made.append(ChatMessage("assistant", "".join(texts), tuple(calls)))
        elif texts:
            said.made.append(ChatMessage("user", _paragraphs(texts)))
    return said.made


def _paragraphs(texts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, texts))


class ToolField(RequestFields):
    """A tool of the program; there are no others."""

    type: Literal["custom"] = "custom"
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class ToolChoiceField(RequestFields):
    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str = ""
    disable_parallel_tool_use: bool = False


class ThinkingField(RequestFields):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1)
    display: Literal["summarized", "omitted"] = "summarized"


class OutputFormat(RequestFields):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestFields):
    format: OutputFormat | None = None


class MessagesRequest(RequestFields):
    refused = REFUSED
    model: str = DEFAULT_MODEL
    max_tokens: Limit
    messages: Annotated[list[Message], Field(min_length=1, max_length=MOST_MESSAGES)]
    system: Paragraphs = ""
    stream: bool = False
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: int | None = None
    stop_sequences: list[str] = Field(default_factory=list, max_length=MOST_STOPS)
    tools: list[ToolField] = Field(default_factory=list)
    tool_choice: ToolChoiceField = ToolChoiceField()
    thinking: ThinkingField = ThinkingField(type="adaptive")
    output_config: OutputConfig = OutputConfig()
    seed: int = Field(default_factory=draw_seed, ge=0, lt=1 << 64)
    moa: Extensions = Extensions()

    def ask(self) -> ChatAsk:
        """What is asked; agents always ask for thinking, so models that have none are not asked for it."""
        refuse_continuing(self.messages)
        if self.thinking.type == "enabled" and self.thinking.budget_tokens is None:
            raise missing("thinking.budget_tokens")
        check_stops("stop_sequences", self.stop_sequences)
        form = None
        with refusing("output_config.format"):
            if self.output_config.format is not None:
                form = schema_form(self.output_config.format.json_schema)
        is_on = {"enabled": True, "disabled": False}.get(self.thinking.type)
        options = AnswerOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences),
            constraint=form,
        )
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=checked(options),
            messages=conversation(self.system, self.messages),
            offer=self._offer(),
            reasoning=AskedReasoning(
                is_on=is_on,
                budget=self.thinking.budget_tokens if is_on else None,
                param="thinking",
                budget_param="thinking.budget_tokens",
            ),
            spares_reasoning=True,
            unverified=self.moa.unverified,
        )

    def form(self, header: AnswerHeader) -> MessageForm:
        return MessageForm(header, shows_thinking=self.thinking.display != "omitted")

    def _offer(self) -> ToolOffer:
        tools = []
        for number, field in enumerate(self.tools):
            with refusing(f"tools[{number}]"):
                tools.append(Tool(field.name, field.description, field.input_schema))
        with refusing("tools"):
            check_tools(tools)
        choice = self.tool_choice
        with refusing("tool_choice"):
            is_parallel = not choice.disable_parallel_tool_use
            return offer_of(tools, _MODES[choice.type], choice.name, is_parallel=is_parallel)


class MessageForm(Form):
    """An answer as Anthropic has it. Invariant: blocks begin and end in turn, and the last one ends with the stream.

    Args:
        shows_thinking: reasoning is sent.
    """

    keep_alive = event({"type": "ping"}, "ping")
    path = "/v1/messages"

    def __init__(self, header: AnswerHeader, *, shows_thinking: bool) -> None:
        super().__init__(header)
        self._shows_thinking = shows_thinking
        self._content: list[Fields] = []  # the blocks that were begun
        self._texts: list[list[str]] = []  # of each block
        self._open = ""  # the type of the block that has not ended

    def whole(self, answer: Answer) -> Fields:
        self.next(answer)
        for block, texts in zip(self._content, self._texts, strict=True):
            key, text = "input" if block["type"] == "tool_use" else block["type"], "".join(texts)
            block[key] = values_of(text) if key == "input" else text
        moa = {"seed": self.header.seed, "verified": answer.is_verified}
        return {**self._message(self._content, answer.completion_tokens), **_end(answer), "moa": moa}

    def first(self, answer: Answer) -> bytes:
        message = {**self._message([], 0), "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def part(self, piece: Piece, answer: Answer) -> bytes:
        match piece:
            case TextPiece(text):
                return self._begin("text", text="") + self._delta("text_delta", "text", text)
            case ReasoningPiece(text):
                if not self._shows_thinking:
                    return b""
                block = self._begin("thinking", thinking="", signature="")
                return block + self._delta("thinking_delta", "thinking", text)
            case CallPiece(_, name, arguments):
                block = self._close() + self._begin("tool_use", id=answer.call_id(piece), name=name, input={})
                return block + self._delta("input_json_delta", "partial_json", arguments) + self._close()

    def end(self, answer: Answer) -> bytes:
        usage, moa = self._usage(answer.completion_tokens), {"seed": self.header.seed}
        ended = _event("message_delta", delta=_end(answer), usage=usage, moa=moa | {"verified": answer.is_verified})
        return self._close() + ended + _event("message_stop")

    def failed(self, error: RequestError) -> bytes:
        return event(error.fields_at(self.path), "error")

    def _message(self, content: list[Fields], tokens: int) -> Fields:
        return {
            "id": f"msg_{self.header.identifier}",
            "type": "message",
            "role": "assistant",
            "model": self.header.model,
            "content": content,
            "usage": self._usage(tokens),
        }

    def _usage(self, tokens: int) -> Fields:
        """How many tokens there were; none is told apart as cached."""
        counts = {"input_tokens": self.header.prompt_tokens, "output_tokens": tokens}
        return counts | {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}

    def _begin(self, kind: str, **fields: Any) -> bytes:
        if self._open == kind:
            return b""
        closing = self._close()
        self._open = kind
        self._content.append({"type": kind, **fields})
        self._texts.append([])
        block = dict(self._content[-1])
        return closing + _event("content_block_start", index=len(self._content) - 1, content_block=block)

    def _delta(self, kind: str, key: str, text: str) -> bytes:
        self._texts[-1].append(text)
        return _event("content_block_delta", index=len(self._content) - 1, delta={"type": kind, key: text})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event("content_block_stop", index=len(self._content) - 1)


def _end(answer: Answer) -> Fields:
    ended, stop = REASONS[answer.reason or ""], answer.stop
    if ended == "end_turn" and answer.finish is Finish.STOP:
        ended = "stop_sequence"
    elif ended == "max_tokens" and answer.finish is Finish.CONTEXT:
        ended = "model_context_window_exceeded"
    return {"stop_reason": ended, "stop_sequence": stop if ended == "stop_sequence" else None}


def values_of(arguments: str) -> dict[str, Any]:
    """The arguments of a call by name, as far as they came."""
    try:
        values = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)

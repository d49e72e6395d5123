"""Anthropic's API of messages, in and out. Pure but for a random seed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from moa_shared.protocol.messages import Finish
from pydantic import BeforeValidator, Field

from moa_client.conversation.options import AnswerOptions, draw_seed
from moa_client.endpoint.answer import Answer, Fields, Form, event
from moa_client.endpoint.ask import AskedReasoning, ChatAsk, Messages, schema_form
from moa_client.endpoint.fields import (
    MOST_MESSAGES,
    REFUSED,
    Paragraphs,
    RequestFields,
    refuse_continuing,
    refused,
    refusing,
)
from moa_client.endpoint.openai_fields import (
    MOST_STOPS,
    Extensions,
    Finite,
    FunctionField,
    Limit,
    check_stops,
    tool_offer,
)
from moa_client.settings import DEFAULT_MODEL
from moa_client.tools.answer_reader import CallPiece, Piece, ReasoningPiece, TextPiece
from moa_client.tools.tool import ToolCall, ToolResult
from moa_client.tools.turns import ChatMessage
from moa_client.web.access import RequestError

ERROR = "Error: "  # before a result that is one: chat templates have no other place for it
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_EFFORTS = {"enabled": "medium", "disabled": "none"}


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


class ToolField(FunctionField):
    """A tool of the program; there are no others."""

    type: Literal["custom"] = "custom"
    parameters: dict[str, Any] = Field(alias="input_schema")


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
        refuse_continuing(self.messages)
        check_stops("stop_sequences", self.stop_sequences)
        form, thinking, choice = None, self.thinking, self.tool_choice
        with refusing("output_config.format"):
            if self.output_config.format is not None:
                form = schema_form(self.output_config.format.json_schema)
        options = AnswerOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=tuple(self.stop_sequences),
            constraint=form,
        )
        with refusing():
            options.settings()
        named = {"type": "function", "name": choice.name}
        chosen = named if choice.type == "tool" else "required" if choice.type == "any" else choice.type
        return ChatAsk(
            model=self.model,
            stream=self.stream,
            options=options,
            messages=conversation(self.system, self.messages),
            offer=tool_offer(self.tools, chosen, is_parallel=not choice.disable_parallel_tool_use, at=""),
            reasoning=AskedReasoning(
                _EFFORTS.get(thinking.type),
                thinking.budget_tokens if thinking.type == "enabled" else None,
                "thinking",
                "thinking.budget_tokens",
            ),
            unverified=self.moa.unverified,
        )

    def form(self, answer: Answer) -> MessageForm:
        return MessageForm(answer, shows_thinking=self.thinking.display != "omitted")


class MessageForm(Form):
    """An answer as Anthropic has it. Invariant: blocks begin and end in turn, and the last one ends with the stream.

    `shows_thinking`: reasoning is sent.
    """

    keep_alive = event({"type": "ping"}, "ping")
    path = "/v1/messages"

    def __init__(self, answer: Answer, *, shows_thinking: bool) -> None:
        super().__init__(answer)
        self._shows_thinking = shows_thinking
        self._content: list[Fields] = []  # the blocks that were begun
        self._texts: list[list[str]] = []  # of each block
        self._open = ""  # the type of the block that has not ended

    def whole(self) -> Fields:
        self.next()
        for block, texts in zip(self._content, self._texts, strict=True):
            key, text = "input" if block["type"] == "tool_use" else block["type"], "".join(texts)
            block[key] = json.loads(text) if key == "input" else text
        return {**self._message(self._content), **_end(self.answer), "moa": self._moa}

    def first(self) -> bytes:
        return _event("message_start", message={**self._message([]), "stop_reason": None, "stop_sequence": None})

    def part(self, piece: Piece) -> bytes:
        match piece:
            case TextPiece(text):
                return self._begin("text", text="") + self._delta("text_delta", "text", text)
            case ReasoningPiece(text):
                if not self._shows_thinking:
                    return b""
                block = self._begin("thinking", thinking="", signature="")
                return block + self._delta("thinking_delta", "thinking", text)
            case CallPiece(_, name, arguments):
                block = self._close() + self._begin("tool_use", id=self.answer.call_id(piece), name=name, input={})
                return block + self._delta("input_json_delta", "partial_json", arguments) + self._close()

    def last(self) -> bytes:
        rest = self.next() + self._close()
        ended = _event("message_delta", delta=_end(self.answer), usage=self._usage, moa=self._moa)
        return rest + ended + _event("message_stop")

    def failed(self, error: RequestError) -> bytes:
        return event(error.fields_at(self.path), "error")

    def _message(self, content: list[Fields]) -> Fields:
        return {
            "id": f"msg_{self.answer.identifier}",
            "type": "message",
            "role": "assistant",
            "model": self.answer.model,
            "content": content,
            "usage": self._usage,
        }

    @property
    def _moa(self) -> Fields:
        return {"seed": self.answer.seed, "verified": self.answer.is_verified}

    @property
    def _usage(self) -> Fields:
        """How many tokens there were; none is told apart as cached."""
        counts = {"input_tokens": self.answer.prompt_tokens, "output_tokens": self.answer.completion_tokens}
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
    ended = REASONS[answer.reason or ""]
    if ended == "end_turn" and answer.finish is Finish.STOP:
        ended = "stop_sequence"
    elif ended == "max_tokens" and answer.finish is Finish.CONTEXT:
        ended = "model_context_window_exceeded"
    return {"stop_reason": ended, "stop_sequence": answer.stop}


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)

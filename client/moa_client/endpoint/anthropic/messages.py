"""The messages of a chat as Anthropic's requests have them, made into what a chat template takes. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Field

from moa_client.endpoint.fields import RequestFields, refused, refusing
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult

ERROR = "Error: "  # before a result that is one: chat templates have no other place for it


class TextBlock(RequestFields):
    """Some text."""

    type: Literal["text"]
    text: str


class ToolUseBlock(RequestFields):
    """A call that an earlier answer made."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class ToolResultBlock(RequestFields):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: list[TextBlock] = Field(default_factory=list)
    is_error: bool = False


class ThinkingBlock(RequestFields):
    """What a model thought before an earlier answer, which is not given back to it."""

    type: Literal["thinking", "redacted_thinking"]


Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


class Message(RequestFields):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: list[Block]


def conversation(system: Sequence[TextBlock], messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for: those of one role that follow each other become one.

    Raises:
        RequestError: calls that cannot be, or results without a call.
    """
    made: list[ChatMessage | ToolResult] = []
    if system:
        messages = [Message(role="system", content=[*system]), *messages]
    first = -1 if system else 0
    called: dict[str, str] = {}  # names by the ids of the calls so far
    for role, same in groupby(enumerate(messages, first), key=lambda each: each[1].role):
        blocks = [
            (f"messages[{number}].content[{place}]", block)
            for number, message in same
            for place, block in enumerate(message.content)
            if not isinstance(block, ThinkingBlock)
        ]
        if role == "assistant":
            calls = tuple(_call(block, path) for path, block in blocks if not isinstance(block, TextBlock))
            called |= {call.id: call.name for call in calls}
            text = "".join(block.text for _, block in blocks if isinstance(block, TextBlock))  # as it was written
            made.append(ChatMessage("assistant", text, calls))
            continue
        results = [_result(block, path, role, called) for path, block in blocks if not isinstance(block, TextBlock)]
        texts = [block for _, block in blocks if isinstance(block, TextBlock)]
        made += results
        if texts or not results:
            made.append(ChatMessage(role, _paragraphs(texts)))
    return made


def _paragraphs(blocks: Sequence[TextBlock]) -> str:
    return "\n\n".join(block.text for block in blocks)


def _call(block: ToolUseBlock | ToolResultBlock, path: str) -> ToolCall:
    if isinstance(block, ToolResultBlock):
        raise refused(path, "only a message from user answers a call")
    with refusing(path):
        return ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False))


def _result(block: ToolUseBlock | ToolResultBlock, path: str, role: str, called: dict[str, str]) -> ToolResult:
    if isinstance(block, ToolUseBlock):
        raise refused(path, "only a message from assistant has calls")
    if role != "user":
        raise refused(path, "only a message from user answers a call")
    if block.tool_use_id not in called:
        raise refused(f"{path}.tool_use_id", f"no message before it made the call {block.tool_use_id[:80]!r}")
    text = _paragraphs(block.content)
    return ToolResult(block.tool_use_id, called[block.tool_use_id], ERROR + text if block.is_error else text)

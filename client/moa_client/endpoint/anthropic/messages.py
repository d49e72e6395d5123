"""The messages of a chat as Anthropic's requests have them, made into what a chat template takes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from moa_client.endpoint.fields import RequestFields, TextPart, TextParts, refused, refusing
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult

ERROR = "Error: "  # before a result that is one: chat templates have no other place for it


class TextBlock(TextPart):
    """Some text."""

    type: Literal["text"]


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
    content: TextParts = Field(default_factory=list)
    is_error: bool = False


class ThinkingBlock(RequestFields):
    """What a model thought before an earlier answer, which is not given back to it."""

    type: Literal["thinking", "redacted_thinking"]


BLOCKS = ("text", "tool_use", "tool_result", "thinking", "redacted_thinking")
Block = Annotated[TextBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock, Field(discriminator="type")]


def _as_blocks(content: object) -> object:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


class Message(RequestFields):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], BeforeValidator(_as_blocks)]


def conversation(system: Sequence[TextPart], messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Messages of one role that follow each other become one. Templates know one system prompt, at the beginning: what the
    system says later becomes the user's.

    Raises:
        RequestError: calls that cannot be, or results without a call.
    """
    leading = next((number for number, each in enumerate(messages) if each.role != "system"), len(messages))
    prompt = [*system, *(block for message in messages[:leading] for block in message.content)]
    made: list[ChatMessage | ToolResult] = [ChatMessage("system", _paragraphs(prompt))] if prompt else []
    called: dict[str, str] = {}  # names by the ids of the calls so far
    for is_answer, same in groupby(enumerate(messages), key=lambda each: each[1].role == "assistant"):
        blocks: list[tuple[str, Block]] = []
        texts: list[TextBlock] = []
        for number, message in same:
            path = f"messages[{number}].content"
            if not message.content and not is_answer:  # an answer may have been empty
                raise refused(path, "expected a text, or blocks")
            blocks += [(f"{path}[{place}]", block) for place, block in enumerate(message.content)]
            texts += [block for block in message.content if isinstance(block, TextBlock) and number >= leading]
        calls = tuple(_call(block, path, is_answer) for path, block in blocks if isinstance(block, ToolUseBlock))
        called |= {call.id: call.name for call in calls}
        made += [
            _result(block, path, is_answer, called) for path, block in blocks if isinstance(block, ToolResultBlock)
        ]
        if is_answer:
            text = "".join(block.text for block in texts)  # as it was written
            made.append(ChatMessage("assistant", text, calls))
        elif texts:
            made.append(ChatMessage("user", _paragraphs(texts)))
    return made


def _paragraphs(blocks: Sequence[Block | TextPart]) -> str:
    return "\n\n".join(block.text for block in blocks if isinstance(block, TextPart))


def _call(block: ToolUseBlock, path: str, is_answer: bool) -> ToolCall:
    if not is_answer:
        raise refused(path, "only a message from assistant has calls")
    with refusing(path):
        return ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False))


def _result(block: ToolResultBlock, path: str, is_answer: bool, called: Mapping[str, str]) -> ToolResult:
    if is_answer:
        raise refused(path, "only a message from user answers a call")
    if block.tool_use_id not in called:
        raise refused(f"{path}.tool_use_id", f"no message before it made the call {block.tool_use_id[:80]!r}")
    text = _paragraphs(block.content)
    return ToolResult(block.tool_use_id, called[block.tool_use_id], ERROR + text if block.is_error else text)

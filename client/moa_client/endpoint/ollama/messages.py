"""The messages of a chat as ollama's requests have them, made into what a chat template takes. Pure.

Older clients give calls no ids, and results the name of a tool at most: a result then answers the first call of its
tool that has none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from moa_client.endpoint.fields import RequestFields, refused, refusing
from moa_client.endpoint.refusals import REFUSED_IN_MESSAGES
from moa_client.tools.ids import call_id
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult


class CalledFunction(RequestFields):
    """What a call calls."""

    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class CallField(RequestFields):
    """A call that an earlier answer made."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(RequestFields):
    """One message; `name` is an older name of `tool_name`."""

    refused = REFUSED_IN_MESSAGES
    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    tool_calls: list[CallField] = Field(default_factory=list)
    tool_name: str = ""
    name: str = ""
    tool_call_id: str = ""


def conversation(messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Raises:
        RequestError: calls that cannot be, or results without a call.
    """
    made: list[ChatMessage | ToolResult] = []
    open_calls: list[ToolCall] = []  # without a result
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if message.tool_calls and message.role != "assistant":
            raise refused(f"{path}.tool_calls", "only a message from assistant has calls")
        if message.role == "tool":
            call = _answered(message, path, open_calls)
            open_calls.remove(call)
            made.append(ToolResult(call.id, call.name, message.content))
            continue
        calls = tuple(_calls(message, path))
        open_calls += calls
        made.append(ChatMessage(message.role, message.content, calls))
    return made


def _calls(message: Message, path: str) -> list[ToolCall]:
    calls = []
    for number, call in enumerate(message.tool_calls):
        place = f"{path}.tool_calls[{number}]"
        with refusing(place):
            arguments = json.dumps(call.function.arguments, ensure_ascii=False)
            calls.append(ToolCall(call.id or call_id(place, 0), call.function.name, arguments))
    return calls


def _answered(message: Message, path: str, open_calls: Sequence[ToolCall]) -> ToolCall:
    """The call that a result answers.

    Raises:
        RequestError: there is none.
    """
    tool = message.tool_name or message.name
    for call in open_calls:
        if message.tool_call_id in ("", call.id) and tool in ("", call.name):
            return call
    name = message.tool_call_id or tool
    raise refused(path, f"no message before it made a call {name[:80]!r} that has no result")

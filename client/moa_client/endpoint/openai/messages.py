"""The messages of a chat as OpenAI's requests have them, made into what a chat template takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from moa_client.endpoint.fields import RequestFields, TextParts, missing, refused, refusing
from moa_client.endpoint.refusals import REFUSED_IN_MESSAGES
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult

SYSTEM_ROLES = ("system", "developer")


class CalledFunction(RequestFields):
    """What a call calls."""

    name: str
    arguments: str


class CallField(RequestFields):
    """A call that an earlier answer made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(RequestFields):
    """One message."""

    refused = REFUSED_IN_MESSAGES
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: TextParts = Field(default_factory=list)
    name: str | None = None
    refusal: str = ""
    reasoning_content: str = ""
    tool_calls: list[CallField] = Field(default_factory=list)
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part.text for part in self.content) + self.refusal


def conversation(messages: Sequence[Message]) -> list[ChatMessage | ToolResult]:
    """The messages as templates are prepared for.

    Templates know one system prompt, at the beginning: all messages of the system there become one.

    Raises:
        RequestError: calls that cannot be, or results without a call.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role in SYSTEM_ROLES:
        leading += 1
    system = "\n\n".join(message.text for message in messages[:leading])
    made: list[ChatMessage | ToolResult] = [ChatMessage("system", system)] if leading else []
    called: dict[str, str] = {}  # names by the ids of the calls so far
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        _check_fields(message, path)
        if number < leading:
            continue
        match message.role:
            case "tool":
                made.append(_result(message, path, called))
            case "user":
                made.append(ChatMessage("user", message.text, name=message.name or ""))
            case "assistant":
                calls = _calls(message, path)
                called |= {call.id: call.name for call in calls}
                name, reasoning = message.name or "", message.reasoning_content
                made.append(ChatMessage("assistant", message.text, calls, name, reasoning))
            case _:
                made.append(ChatMessage("system", message.text))
    return made


def _check_fields(message: Message, path: str) -> None:
    if message.role != "assistant" and not message.content:
        raise missing(f"{path}.content")
    if message.tool_calls and message.role != "assistant":
        raise refused(f"{path}.tool_calls", "only a message from assistant has calls")
    if message.reasoning_content and message.role != "assistant":
        raise refused(f"{path}.reasoning_content", "only a message from assistant has reasoning")
    if message.tool_call_id is not None and message.role != "tool":
        raise refused(f"{path}.tool_call_id", "only a message from tool answers a call")


def _calls(message: Message, path: str) -> tuple[ToolCall, ...]:
    calls = []
    for number, call in enumerate(message.tool_calls):
        with refusing(f"{path}.tool_calls[{number}]"):
            calls.append(ToolCall(call.id, call.function.name, call.function.arguments or "{}"))
    return tuple(calls)


def _result(message: Message, path: str, called: dict[str, str]) -> ToolResult:
    param = f"{path}.tool_call_id"
    if message.tool_call_id is None:
        raise missing(param)
    if message.tool_call_id not in called:
        raise refused(param, f"no message before it made the call {message.tool_call_id[:80]!r}")
    return ToolResult(message.tool_call_id, called[message.tool_call_id], message.text)

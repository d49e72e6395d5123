"""The items of a response's input, made into what a chat template takes. Pure.

Programs send back what they got: what has no effect of it is ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from moa_client.endpoint.fields import RequestFields, TextPart, TextParts, refused, refusing
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult

INPUT = "input"


ITEMS = ("message", "function_call", "function_call_output", "reasoning")


class MessageItem(RequestFields):
    """A message."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: TextParts


class CallItem(RequestFields):
    """A call that an earlier answer made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class ResultItem(RequestFields):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: TextParts


class ReasoningItem(RequestFields):
    """What a model thought before an earlier answer; this one does not get it."""

    type: Literal["reasoning"]


Item = Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")]


def _as_items(given: object) -> object:
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(map(_typed, given)) if isinstance(given, list) else given


def _typed(item: object) -> object:
    """An item with its type, which a message may lack."""
    has_none = isinstance(item, dict) and item.get("type") is None and "role" in item
    return {**item, "type": "message"} if isinstance(item, dict) and has_none else item


Items = Annotated[list[Item], BeforeValidator(_as_items)]


def conversation(
    before: Sequence[Item], items: Sequence[Item], instructions: str | None
) -> list[ChatMessage | ToolResult]:
    """The items as templates are prepared for. What an answer said and what it called become one message.

    Templates know one system prompt, at the beginning: the instructions and all messages of the system there become
    one.

    Args:
        before: of the responses that are continued.

    Raises:
        RequestError: calls that cannot be, results without a call, or nothing that could be answered.
    """
    system = [] if instructions is None else [instructions]
    made: list[ChatMessage | ToolResult] = []
    called: dict[str, str] = {}  # names by the ids of the calls so far
    for number, item in enumerate([*before, *items], -len(before)):
        path = f"{INPUT}[{number}]"
        match item:
            case MessageItem(role="system" | "developer") if not made:
                system.append(_text(item.content))
            case MessageItem():
                _add_message(made, item)
            case CallItem():
                with refusing(path):
                    _add_call(made, ToolCall(item.call_id, item.name, item.arguments))
                called[item.call_id] = item.name
            case ResultItem():
                if item.call_id not in called:
                    raise refused(f"{path}.call_id", f"no item before it made the call {item.call_id[:80]!r}")
                made.append(ToolResult(item.call_id, called[item.call_id], _text(item.output)))
    if made and isinstance(made[-1], ChatMessage) and made[-1].role == "assistant":
        raise refused(INPUT, "the last item must not be a message from assistant, or a call: answers are not continued")
    if system:
        made.insert(0, ChatMessage("system", "\n\n".join(system)))
    if not made:
        raise refused(INPUT, "there is no message in it")
    return made


def _add_message(made: list[ChatMessage | ToolResult], item: MessageItem) -> None:
    text, last = _text(item.content), made[-1] if made else None
    match item.role:
        case "user":
            made.append(ChatMessage("user", text))
        case "assistant" if isinstance(last, ChatMessage) and last.calls and not last.text:
            made[-1] = ChatMessage("assistant", text, last.calls)
        case "assistant":
            made.append(ChatMessage("assistant", text))
        case _:
            made.append(ChatMessage("system", text))


def _add_call(made: list[ChatMessage | ToolResult], call: ToolCall) -> None:
    last = made[-1] if made else None
    if isinstance(last, ChatMessage) and last.role == "assistant":
        made[-1] = ChatMessage("assistant", last.text, (*last.calls, call))
    else:
        made.append(ChatMessage("assistant", "", (call,)))


def _text(parts: Sequence[TextPart]) -> str:
    return "".join(part.text for part in parts)

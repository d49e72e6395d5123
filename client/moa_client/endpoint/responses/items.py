"""The items of a response's input, made into what a chat template takes. Pure.

All their fields are listed, as `parameters` has it for a request: used, ignored because nothing depends on it, or
refused unless it says what happens anyway. Programs send back what they got: that is let pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from moa_client.endpoint.fields import RequestFields, refused, refusing
from moa_client.endpoint.openai.parameters import RESPONSES
from moa_client.endpoint.parameters import Parameter, used_fields
from moa_client.tools.template_input import ChatMessage
from moa_client.tools.tool import ToolCall, ToolResult
from moa_client.web.error_form import RequestError

INPUT = "input"


def _fields(used: Sequence[str], ignored: Sequence[str], *refused: Parameter) -> dict[str, Parameter]:
    fields = [*(Parameter(name, RESPONSES, "used", "") for name in ("type", *used))]
    fields += [Parameter(name, RESPONSES, "ignored", "") for name in ("id", "status", *ignored)]
    return {field.name: field for field in (*fields, *refused)}


_CALLER = Parameter("caller", RESPONSES, "refused", "Only the model calls tools here.", ({"type": "direct"},))
_NAMESPACE = Parameter("namespace", RESPONSES, "refused", "Tools have no namespaces here.", ("",))
_ASYNC = Parameter("async", RESPONSES, "refused", "A call is answered before the model goes on.", (False,))
ITEMS: dict[str, dict[str, Parameter]] = {
    "message": _fields(("role", "content"), ("phase",)),
    "function_call": _fields(("call_id", "name", "arguments"), (), _CALLER, _NAMESPACE, _ASYNC),
    "function_call_output": _fields(("call_id", "output"), ("name",), _CALLER, _NAMESPACE),
    "reasoning": _fields((), ("summary", "content", "encrypted_content")),
}
PARTS: dict[str, dict[str, Parameter]] = {
    "input_text": _fields(("text",), ("prompt_cache_breakpoint",)),
    "output_text": _fields(("text",), ("annotations", "logprobs", "parsed")),
    "refusal": _fields(("refusal",), ()),
}


class TextItemPart(RequestFields):
    """A part of an item, whichever its type was."""

    text: str


class MessageItem(RequestFields):
    """A message."""

    type: Literal["message"]
    role: Literal["system", "developer", "user", "assistant"]
    content: list[TextItemPart]


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
    output: list[TextItemPart]


class ReasoningItem(RequestFields):
    """What a model thought before an earlier answer; this one does not get it."""

    type: Literal["reasoning"]


Item = Annotated[MessageItem | CallItem | ResultItem | ReasoningItem, Field(discriminator="type")]


def as_items(given: object) -> object:
    """What a request gives as its input, as a list of items."""
    return [{"type": "message", "role": "user", "content": given}] if isinstance(given, str) else given


def used_items(given: object) -> object:
    """Items with the fields that have an effect; what has another form is left as it is.

    Raises:
        RequestError: a type or a field is unknown, or would need what there is not.
    """
    return used_list(given) if isinstance(given, list) else given


def used_list(given: Sequence[object]) -> list[object]:
    """The same of a list."""
    return [_used_item(item, f"{INPUT}[{number}]") for number, item in enumerate(given)]


def _used_item(item: object, path: str) -> object:
    if not isinstance(item, dict):
        return item
    kind = item.get("type") or ("message" if "role" in item else None)
    used = {"type": kind, **used_fields(item, _of_type(kind, ITEMS, path), f"{path}.")}
    for name in {"content", "output"} & set(used):
        used[name] = _used_parts(used[name], f"{path}.{name}")
    return used


def _used_parts(given: object, path: str) -> object:
    if isinstance(given, str):
        return [{"text": given}]
    if not isinstance(given, list):
        return given
    parts = []
    for number, part in enumerate(given):
        if not isinstance(part, dict):
            raise refused(f"{path}[{number}]", "expected an object with a type")
        known = _of_type(part.get("type"), PARTS, f"{path}[{number}]")
        used = used_fields(part, known, f"{path}[{number}].")
        parts.append({"text": used.get("refusal" if used["type"] == "refusal" else "text")})
    return parts


def _of_type(kind: object, known: Mapping[str, dict[str, Parameter]], path: str) -> dict[str, Parameter]:
    if not isinstance(kind, str) or kind not in known:
        param = f"{path}.type"
        words = f"{param} is {str(kind)[:64]!r}, which is not supported. What there is: {', '.join(known)}."
        raise RequestError(400, words, param=param, code="unsupported_parameter")
    return known[kind]


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


def _text(parts: Sequence[TextItemPart]) -> str:
    return "".join(part.text for part in parts)


def items_table() -> str:
    """All items and parts with their fields as a Markdown table."""
    lines = ["| item or part | fields | without effect | refused |", "| --- | --- | --- | --- |"]
    for kind, fields in (ITEMS | PARTS).items():
        by_use = [
            ", ".join(f"`{each.name}`" for each in fields.values() if each.use == use and each.name != "type")
            for use in ("used", "ignored", "refused")
        ]
        lines.append(f"| `{kind}` | {' | '.join(by_use)} |")
    return "\n".join(lines) + "\n"

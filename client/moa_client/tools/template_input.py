"""What a chat template is given of a conversation with tools. Pure.

A template that knows tools is given them and the calls as they are. Otherwise they are written into the messages as
text: a template that leaves them out would have the model forget what it called.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.thinking import find_thinking
from moa_client.tools.tool import Tool, ToolCall, ToolResult

_REASONING = ("reasoning_content", "thinking")  # how templates name what an earlier answer's reasoning was
_TOOLS = re.compile(r"\{[%{][^%}]*\b(?:xml_)?tools\b")  # in code of the template, not in its text


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation.

    Args:
        calls: that it makes, after its text; only the assistant's has some.
        name: of who says it; empty: none is given.
        reasoning: before it; only the assistant's has some.
    """

    role: Literal["system", "user", "assistant"]
    text: str
    calls: tuple[ToolCall, ...] = ()
    name: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class TemplateInput:
    """What a chat template is rendered with.

    Args:
        arguments: besides the messages, by name.
        marks: that answers among the messages may have.
    """

    messages: list[dict[str, Any]]
    arguments: dict[str, Any] = field(default_factory=dict)
    marks: tuple[str, ...] = ()


def template_input(
    form: ToolFormat, chat_template: str, messages: Sequence[ChatMessage | ToolResult], tools: Sequence[Tool]
) -> TemplateInput:
    """A conversation as its model's template takes it.

    Args:
        form: in which the model writes calls.
        messages: those of the system at the beginning only.
        tools: that are offered for the next answer.
    """
    knows_tools = _TOOLS.search(chat_template) is not None
    if tools and not knows_tools:
        first, text = messages[0] if messages else None, form.render_tools(tools)
        if isinstance(first, ChatMessage) and first.role == "system":
            messages = [replace(first, text=f"{first.text}\n\n{text}"), *messages[1:]]
        else:
            messages = [ChatMessage("system", text), *messages]
    key = next((each for each in _REASONING if re.search(rf"\.{each}\b|\[['\"]{each}['\"]\]", chat_template)), "")
    if "tool_calls" in chat_template:
        rendered = [_as_is(message, form, key) for message in messages]
    else:
        rendered = [_plain(message, key) for message in _as_text(messages, form)]
    thinking = find_thinking(chat_template)
    marks = form.marks if thinking is None else (*form.marks, *thinking.openings, *thinking.closings, *thinking.others)
    return TemplateInput(rendered, form.template_arguments(tools) if tools and knows_tools else {}, marks)


def _plain(message: ChatMessage, reasoning: str) -> dict[str, Any]:
    """A message; `reasoning`: how the template names it; empty: it knows none."""
    named = {"name": message.name} if message.name else {}
    reasoned = {reasoning: message.reasoning} if reasoning and message.reasoning else {}
    return {"role": message.role, "content": message.text, **named, **reasoned}


def _as_is(message: ChatMessage | ToolResult, form: ToolFormat, reasoning: str) -> dict[str, Any]:
    if isinstance(message, ToolResult):
        call_id = form.template_id(message.call_id)
        return {"role": "tool", "name": message.name, "tool_call_id": call_id, "content": message.content}
    rendered = _plain(message, reasoning)
    if message.calls:
        functions = [(call.id, {"name": call.name, "arguments": call.values}) for call in message.calls]
        rendered["tool_calls"] = [
            {"id": form.template_id(id), "type": "function", "function": function} for id, function in functions
        ]
    return rendered


def _as_text(messages: Sequence[ChatMessage | ToolResult], form: ToolFormat) -> list[ChatMessage]:
    """The messages with calls and results as text. Results become the user's, together with what the user says next:
    many templates insist on turns.
    """
    written: list[ChatMessage] = []
    follows_result = False
    for message in messages:
        is_result = isinstance(message, ToolResult)
        if isinstance(message, ToolResult):
            message = ChatMessage("user", f"<tool_response>\n{message.content}\n</tool_response>")
        elif message.calls:
            message = replace(message, text=form.render(message.text, message.calls), calls=())
        if follows_result and message.role == "user":
            message = replace(message, text=f"{written.pop().text}\n{message.text}")
        written.append(message)
        follows_result = is_result
    return written

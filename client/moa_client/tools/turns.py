"""What a chat template is given of a conversation with tools, and its turns: questions, and results of calls. Pure.

A template that knows tools is given them and the calls as they are. Otherwise they are written into the messages as
text: a template that leaves them out would have the model forget what it called.
What the answers before a turn say is in their tokens and never made again, so a turn holds only what comes after them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from moa_client.tools.answer_reader import AnswerReader, find_format, parted
from moa_client.tools.formats import ToolFormat, render_tools
from moa_client.tools.template import CALL_MARK, ChatTemplate, Said
from moa_client.tools.thinking import EFFORTS, effort_arguments, find_thinking
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall, ToolResult, call_id

if TYPE_CHECKING:
    from moa_shared.models.tokenizer import Tokenizer

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

    `arguments`: besides the messages, by name. `marks`: that answers among the messages may have.
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
        first, text = messages[0] if messages else None, render_tools(tools)
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
    marks = form.marks if thinking is None else (*form.marks, *thinking.all)
    offered: dict[str, Any] = {"tools": [{"type": "function", "function": tool.function()} for tool in tools]}
    if "xml_tools" in chat_template:  # SmolLM3's
        offered = {"xml_tools": [tool.function() for tool in tools]}
    return TemplateInput(rendered, offered if tools and knows_tools else {}, marks)


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


PROMPT_END = 32  # tokens: enough to hold what opens reasoning
Turn = Callable[[Sequence[int]], Sequence[int]]  # the tokens to append to those of the conversation


class ConversationTurns:
    """Makes turns. What renders raises ModelSourceError or ContextLengthError, as ChatTemplate does.

    Args:
        system: the system prompt; None: the model's own.
        context_tokens: the most that the target takes.
        ends: the tokens that end an answer.
        tools: that the conversation offers.
        said: gives the questions and answers of other models, which come before the first turn.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        system: str | None,
        context_tokens: int,
        ends: Container[int],
        tools: Sequence[Tool] = (),
        said: Callable[[], Said] = tuple,
    ) -> None:
        self._said = said
        self.tools = tuple(tools)
        if tools:
            tokenizer = tokenizer.with_tools()
        self._tokenizer = tokenizer
        self._ends = ends
        self._chat_template = tokenizer.chat_template or ""
        self._form = find_format(self._chat_template)
        start = [] if system is None else [ChatMessage("system", system)]
        given = template_input(self._form, self._chat_template, start, tools)
        started = given.messages[0]["content"] if given.messages else None

        def template(effort: str | None) -> ChatTemplate:
            arguments = given.arguments | effort_arguments(self._chat_template, effort)
            return ChatTemplate(tokenizer, started, context_tokens, arguments)

        self._template = lru_cache(len(EFFORTS) + 1)(template)

    def check(self) -> None:
        """Raises what the first turn would raise, whatever is asked in it."""
        self._template(None).first_turn("?")

    def of(self, question: str, results: Sequence[AnsweredCall] = (), effort: str | None = None) -> Turn:
        """The turn of a question, or of the results of the calls before it in its place.

        `effort`: how much the model is asked to reason; None: as its template has it.
        """
        template = self._template(effort)
        if results:
            calls = [each.call for each in results]
            calls[-1] = replace(calls[-1], arguments=f'{{"answer": "{CALL_MARK}"}}')
            called = ChatMessage("assistant", "", tuple(calls))
            said: list[ChatMessage | ToolResult] = [called, *(each.result for each in results)]
            messages = template_input(self._form, self._chat_template, said, ()).messages
            if messages[-1]["role"] != "user":
                after = cache(lambda: template.after_calls(messages))
                return lambda before: self._continued(after(), before)
            question = messages[-1]["content"]  # the template knows no calls
        return lambda before: (
            template.next_turn(question, before) if before else template.first_turn(question, self._said())
        )

    def calls(self, before: Sequence[int], answer: Sequence[int], identifier: str) -> tuple[ToolCall, ...]:
        """The calls of an answer that has ended; only the first, where the template takes no more.

        `before`: the tokens before it. `identifier`: tells the answer from all others.
        """
        if not self.tools:
            return ()
        thinking = find_thinking(self._chat_template)
        is_open = thinking is not None and thinking.is_open(self._spelled(before[-PROMPT_END:]))
        reader = AnswerReader(thinking, self._form, self.tools, is_open=is_open)
        _, _, found = parted([*reader.push(self._spelled(answer)), *reader.finish()])
        calls = tuple(ToolCall(call_id(identifier, each.index), each.name, each.arguments) for each in found)
        return calls if self._form.is_parallel else calls[:1]

    def _continued(self, after: Sequence[int], before: Sequence[int]) -> Sequence[int]:
        """What follows an answer of calls, which ends with the token that ends it, or was cut before it."""
        last = before[-1]
        if last in self._ends and last in after:
            return after[after.index(last) + 1 :]
        end = next((index for index, token in enumerate(after) if token in self._ends), 0)
        return after[end + 1 :] if last in self._ends else after[end:]

    def _spelled(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode([token for token in tokens if token not in self._ends])

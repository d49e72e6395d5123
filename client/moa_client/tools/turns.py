"""The turns of one conversation as its model's template has them: questions, and the results of calls. Pure.

What the answers before a turn say is in their tokens and never made again, so a turn holds only what comes after them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from moa_shared.text.template import CALL_MARK, ChatTemplate

from moa_client.tools.answer_reader import AnswerReader, CallPiece
from moa_client.tools.effort import EFFORTS, effort_arguments
from moa_client.tools.formats.families import find_format
from moa_client.tools.template_input import ChatMessage, template_input
from moa_client.tools.thinking import ThinkingReader, find_thinking
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall, ToolResult, call_id

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

PROMPT_END = 32  # tokens: enough to hold what opens reasoning
Turn = Callable[[Sequence[int]], Sequence[int]]  # the tokens to append to those of the conversation


class ConversationTurns:
    """Makes turns.

    Args:
        tokenizer: of the target.
        system: the system prompt; None: the model's own.
        context_tokens: the most that the target takes.
        ends: the tokens that end an answer.
        tools: that the conversation offers.

    What renders raises ModelSourceError where the template refuses, and ContextLengthError for what cannot fit.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        system: str | None,
        context_tokens: int,
        ends: Container[int],
        tools: Sequence[Tool] = (),
    ) -> None:
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
        self._template(None).check()

    def of(self, question: str, results: Sequence[AnsweredCall] = (), effort: str | None = None) -> Turn:
        """The turn of a question, or of the results of the calls before it in its place.

        Args:
            effort: how much the model is asked to reason; None: as its template has it.
        """
        template = self._template(effort)
        return self._of_results(results, template) if results else self._of_question(question, template)

    def calls(self, before: Sequence[int], answer: Sequence[int], identifier: str) -> tuple[ToolCall, ...]:
        """The calls of an answer that has ended; only the first, where the template takes no more.

        Args:
            before: the tokens before it.
            identifier: tells the answer from all others.
        """
        if not self.tools:
            return ()
        thinking = find_thinking(self._chat_template)
        is_open = thinking is not None and thinking.is_open(self._spelled(before[-PROMPT_END:]))
        reasoning = None if thinking is None else ThinkingReader(thinking, is_open=is_open)
        reader = AnswerReader(reasoning, self._form, self.tools)
        calls = tuple(
            ToolCall(call_id(identifier, piece.index), piece.name, piece.arguments)
            for piece in [*reader.push(self._spelled(answer)), *reader.finish()]
            if isinstance(piece, CallPiece) and piece.is_whole
        )
        return calls if self._form.is_parallel else calls[:1]

    def _of_question(self, question: str, template: ChatTemplate) -> Turn:
        def turn(before: Sequence[int]) -> Sequence[int]:
            return template.next_turn(question, before) if before else template.first_turn(question)

        return turn

    def _of_results(self, results: Sequence[AnsweredCall], template: ChatTemplate) -> Turn:
        calls = [each.call for each in results]
        calls[-1] = replace(calls[-1], arguments=f'{{"answer": "{CALL_MARK}"}}')
        called = ChatMessage("assistant", "", tuple(calls))
        said: list[ChatMessage | ToolResult] = [called, *(each.result for each in results)]
        messages = template_input(self._form, self._chat_template, said, ()).messages
        if messages[-1]["role"] == "user":  # the template knows no calls
            return self._of_question(messages[-1]["content"], template)
        after = cache(lambda: template.after_calls(messages))
        return lambda before: self._continued(after(), before)

    def _continued(self, after: Sequence[int], before: Sequence[int]) -> Sequence[int]:
        """What follows an answer of calls, which ends with the token that ends it, or was cut before it."""
        last = before[-1]
        if last in self._ends and last in after:
            return after[after.index(last) + 1 :]
        end = next((index for index, token in enumerate(after) if token in self._ends), 0)
        return after[end + 1 :] if last in self._ends else after[end:]

    def _spelled(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode([token for token in tokens if token not in self._ends])

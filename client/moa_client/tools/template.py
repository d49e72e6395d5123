"""The target's chat template, a turn at a time: which tokens to append so that the conversation continues.

The answer's own tokens are never made again from text, but where a program sends a whole conversation in text.
What users, tools and files say is letters: special tokens come from the template alone, and from marks in answers.
Pure over a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import TemplateError
from moa_shared.errors import ConfigError, ContextLengthError, ModelSourceError

from moa_client.tools.thinking import EFFORTS, ReasoningMarks, Thinking, effort_arguments, find_thinking

if TYPE_CHECKING:
    from moa_shared.models.tokenizer import Tokenizer
    from moa_shared.sandbox.chat_template import Messages

MARK = "\x02answer\x03"  # takes an answer's place while the template around it is looked up
Said = tuple[tuple[Literal["user", "assistant"], str], ...]  # messages
CALL_MARK = "moa~answer~moa"  # the same within the arguments of a call, which JSON leaves as it is


class ChatTemplate:
    """Renders turns. What was rendered last is kept, so that it can be prepared on another thread.

    Rendering raises ModelSourceError if there is no template or it refuses, and ContextLengthError for what cannot fit.

    `tokenizer`: of the target; one without a chat template can be asked for raw text, and renders nothing. `system`:
    the system prompt; None: the template's own default. `arguments`: what else the template is given for turns, by
    name, such as tools.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        system: str | None = None,
        context_tokens: int = 1 << 31,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._arguments = arguments or None
        self._first = lru_cache(1)(self._render_first)
        answered = {"role": "assistant", "content": MARK}
        self._next = lru_cache(1)(lambda text: self._after([answered, {"role": "user", "content": text}], MARK))
        self._start = [] if system is None else [{"role": "system", "content": system}]

    def first_turn(self, text: str, said: Said = ()) -> list[int]:
        """`said`: before it by others, whose answers are letters to this model."""
        return list(self._first(text, said))

    def _render_first(self, text: str, said: Said) -> list[int]:
        messages = [{"role": role, "content": words} for role, words in (*said, ("user", text))]
        return self._encode(self._render([*self._start, *messages], arguments=self._arguments, marks=()))

    def next_turn(self, text: str, committed: Sequence[int]) -> list[int]:
        """Tokens to append to a conversation that ends with an answer, up to where the next one begins."""
        after = self._next(text)
        # An answer that ended by itself holds the end-of-turn token; one that was cut is closed here.
        return list(after[1:] if after and committed and committed[-1] == after[0] else after)

    def after_calls(self, messages: Messages) -> list[int]:
        """Tokens after an answer of calls, the last with CALL_MARK, from within it to where the next answer begins."""
        return self._after(messages, CALL_MARK)

    def _after(self, messages: Messages, mark: str) -> list[int]:
        turn = [*self._start, {"role": "user", "content": "?"}, *messages]
        whole = self._render(turn, arguments=self._arguments)
        if mark not in whole:
            raise ModelSourceError(
                "The target's chat template does not repeat earlier answers.", hint="Start a new conversation: /reset."
            )
        return self._encode(whole.split(mark, 1)[1])

    def whole(
        self, messages: Messages, arguments: Mapping[str, Any] | None = None, marks: Sequence[str] | None = None
    ) -> list[int]:
        """Tokens of a whole conversation, with its system prompt, up to where its next answer begins.

        `marks`: all that has special tokens in what answers say; None: whatever spells some has them.
        """
        hint = "Send other messages, or serve another model."
        text = self._render(messages, arguments=arguments, hint=hint, marks=marks)
        for number, message in enumerate(messages):  # of answers, templates may leave out how they came about
            said = self._tokenizer.as_letters(message["content"]).strip()
            as_json = json.dumps(said, ensure_ascii=False)[1:-1]  # so many templates write what a tool says
            if message["role"] != "assistant" and said not in text and as_json not in text:
                raise ModelSourceError(
                    f"The target's chat template leaves out message {number}, which is of the role {message['role']}.",
                    hint=hint,
                )
        return self._encode(text)

    def _encode(self, text: str) -> list[int]:
        return prompt_tokens(self._tokenizer, text, self._context_tokens, is_guarded=True)

    def _render(
        self,
        messages: Messages,
        *,
        arguments: Mapping[str, Any] | None = None,
        hint: str = "Leave out --system, or serve another model.",
        marks: Sequence[str] | None = None,
    ) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                [self._guarded_message(each, marks) for each in messages],
                add_generation_prompt=True,
                arguments=self._guarded(arguments),
            )
        except TemplateError as error:  # such as a template that knows no system prompt
            raise ModelSourceError(
                f"The target's chat template refuses the conversation: {str(error).rstrip('.')}.", hint=hint
            ) from None

    def _guarded_message(self, message: Mapping[str, Any], marks: Sequence[str] | None) -> Mapping[str, Any]:
        if message["role"] != "assistant":
            return {name: self._guarded(value) for name, value in message.items()}
        calls = {"tool_calls": self._guarded(message["tool_calls"])} if "tool_calls" in message else {}
        said = message if marks is None else {name: self._guarded(value, marks) for name, value in message.items()}
        return {**said, **calls}

    def _guarded(self, value: Any, but: Sequence[str] = ()) -> Any:
        match value:
            case str():
                return self._tokenizer.as_letters(value, but)
            case Mapping():
                return {self._guarded(name, but): self._guarded(each, but) for name, each in value.items()}
            case list() | tuple():
                return [self._guarded(each, but) for each in value]
        return value


PIECE = 1 << 15  # characters; most prompts are shorter
MARGIN = 2  # a cut between two pieces makes a few tokens more, never as many as there are


def prompt_tokens(tokenizer: Tokenizer, text: str, context_tokens: int, *, is_guarded: bool = False) -> list[int]:
    """The tokens of a text; they may still be more than the context takes.

    A bound on the number of characters would refuse little: one token may be 80 spaces.
    """
    if len(text) > PIECE:
        tokens = 0
        for begin in range(0, len(text), PIECE):
            tokens += len(tokenizer.encode(text[begin : begin + PIECE], is_guarded=is_guarded))
            if tokens > MARGIN * context_tokens:
                raise ContextLengthError(
                    f"The prompt has far more tokens than the {context_tokens} of the context.",
                    hint="Shorten the prompt.",
                )
    return tokenizer.encode(text, is_guarded=is_guarded)


_ASKED = [{"role": "user", "content": "?"}]


@lru_cache(maxsize=4)
def reasoning_marks(tokenizer: Tokenizer) -> ReasoningMarks | None:
    """How answers mark reasoning; None: they have none that is known."""
    thinking = find_thinking(tokenizer.chat_template or "")
    if thinking is None:
        return None
    opened = {effort: _is_open(tokenizer, thinking, effort) for effort in ("", *EFFORTS)}
    return ReasoningMarks(
        thinking.openings,
        thinking.closings,
        thinking.repeated,
        thinking.others,
        tuple(effort for effort, is_open in opened.items() if is_open),
        tuple(effort for effort in EFFORTS if opened[effort] is not None),
    )


def _is_open(tokenizer: Tokenizer, thinking: Thinking, effort: str) -> bool | None:
    """Whether the prompt opens reasoning with this effort; None: it cannot be asked for."""
    try:
        arguments = effort_arguments(tokenizer.chat_template or "", effort or None)
        return thinking.is_open(tokenizer.apply_chat_template(_ASKED, add_generation_prompt=True, arguments=arguments))
    except (ConfigError, TemplateError):
        return None

"""Reads reasoning out of an answer's text as it comes; what is left may be read for calls. Pure.

Chat, page and endpoint tell reasoning from the answer by this alone; the page's script has the same rules.

White space around reasoning is dropped. Sources: the chat templates of DeepSeek-R1, Qwen3, Magistral and Gemma 4, and
https://github.com/openai/harmony/blob/main/docs/format.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from moa_shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """How a family marks reasoning.

    Args:
        sign: what its chat templates contain.
        openings, closings: markers around it.
        is_repeated: it may come anywhere; otherwise only where an answer begins, so that an answer may tell of the
            markers.
        others: markers outside of reasoning that people are not shown.
        first_mark: what every opening begins with, or each beginning of a message.
        channels: what may follow it where no reasoning begins.
        next_message: what comes between reasoning and what is after it; empty: white space.
        answer: what an answer that calls nothing begins with after that.
    """

    sign: str
    openings: tuple[str, ...]
    closings: tuple[str, ...]
    is_repeated: bool = False
    others: tuple[str, ...] = ()
    first_mark: str = ""
    channels: tuple[str, ...] = ()
    next_message: str = ""
    answer: str = ""

    def is_open(self, prompt: str) -> bool:
        """Whether a prompt ends within reasoning, so that the answer begins with it."""
        return prompt.rstrip().endswith(tuple(opening.rstrip() for opening in self.openings))


_START = "<|start|>assistant"
_ANALYSIS = "<|channel|>analysis<|message|>"
THINKINGS = (
    Thinking(
        "<|channel|>analysis",
        (_ANALYSIS, f"{_START}{_ANALYSIS}"),
        ("<|end|>", "<|return|>"),
        is_repeated=True,
        others=(
            *(f"{start}<|channel|>{name}<|message|>" for start in ("", _START) for name in ("final", "commentary")),
            "<|end|>",
            "<|return|>",
        ),
        first_mark="<|channel|>",
        channels=("final", "commentary"),
        next_message=_START,
        answer="<|channel|>final<|message|>",
    ),
    Thinking("<|channel>thought", ("<|channel>thought\n",), ("<channel|>",), is_repeated=True, first_mark="<|channel>"),
    Thinking("[THINK]", ("[THINK]",), ("[/THINK]",)),
    Thinking("<think>", ("<think>",), ("</think>",)),
)


def find_thinking(chat_template: str) -> Thinking | None:
    """How a model with this chat template marks reasoning; None: it has none that is known."""
    return next((each for each in THINKINGS if each.sign in chat_template), None)


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")  # OpenAI's
_GRADES = ("low", "medium", "high")  # that every template with `reasoning_effort` knows
_DOES_NOT, _LEAVE_OUT = "This model does not reason before it answers.", "Leave it out."
_EFFORT, _SWITCHES = "reasoning_effort", ("enable_thinking", "thinking")


def uses(chat_template: str, name: str) -> bool:
    """Whether a template's code, rather than its text, uses a variable."""
    return re.search(r"\{[%{][^%}]*(?<![.\w'\"])" + re.escape(name) + r"(?![\w'\"])", chat_template) is not None


def effort_arguments(chat_template: str, effort: str | None) -> dict[str, Any]:
    """The arguments of a template that ask for an effort; `effort`: one of `EFFORTS`; None: as the model has it."""
    if effort is None:
        return {}
    switch = next((name for name in _SWITCHES if uses(chat_template, name)), None)
    if uses(chat_template, _EFFORT):
        if effort in _GRADES or re.search(f"['\"]{effort}['\"]", chat_template):
            switched = {switch: effort != "none"} if switch is not None else {}
            return {_EFFORT: effort, **switched}
        if effort != "none" or switch is None:
            raise ConfigError(
                f"This model cannot reason with the effort {effort!r}.", hint=f"It knows {', '.join(_GRADES)}."
            )
    if switch is not None:
        return {switch: effort != "none"}
    if effort == "medium" or (effort == "none" and find_thinking(chat_template) is None):
        return {}  # what it does anyway
    if find_thinking(chat_template) is None:
        raise ConfigError(_DOES_NOT, hint=_LEAVE_OUT)
    raise ConfigError("This model always reasons as much as it does.", hint=_LEAVE_OUT)


@dataclass(frozen=True, slots=True)
class AskedReasoning:
    """What is asked of the reasoning before an answer.

    Args:
        effort: one of `EFFORTS`; None: as the model has it.
        is_on: whether the model is to reason at all; None: as it has it.
        budget: the most tokens of it; None: any number.
        param, budget_param: of the request, which errors name.
    """

    effort: str | None = None
    is_on: bool | None = None
    budget: int | None = None
    param: str = "reasoning_effort"
    budget_param: str = "thinking_token_budget"

    @property
    def is_off(self) -> bool:
        return self.effort == "none" or self.is_on is False

    def arguments(self, chat_template: str) -> dict[str, Any]:
        """Those of a template that ask for it."""
        if self.is_on is None or self.effort is not None:
            return effort_arguments(chat_template, self.effort)
        if self.is_on and find_thinking(chat_template) is None:
            raise ConfigError(_DOES_NOT, hint=_LEAVE_OUT)
        return effort_arguments(chat_template, "medium" if self.is_on else "none")


AS_IT_IS = AskedReasoning()


class ThinkingReader:
    """Splits one answer. What comes out depends on the text alone, not on its pieces. A copy reads on by itself.

    Args:
        is_open: the answer begins with reasoning, which the prompt has opened.
        drops_others: nothing reads what is left: markers that people are not shown are left out.
    """

    def __init__(self, thinking: Thinking, *, is_open: bool, drops_others: bool = False) -> None:
        self.is_thinking = is_open
        self._thinking = thinking
        self._others = thinking.others if drops_others else ()
        self._drops_space = is_open  # what comes next follows a marker
        self._has_answer = False
        self._space = ""  # held until something follows it
        self._held = ""  # what may begin a marker
        self._certain: list[ReasoningPiece | TextPiece] = []

    def push(self, text: str) -> list[ReasoningPiece | TextPiece]:
        """Reads more text; what has become certain."""
        self._certain, text = [], self._held + text
        while True:
            markers = self._markers
            found = _search(markers).search(text)
            end = found.start() if found is not None else len(text) - held_back(text, markers)
            self._write(text[:end])
            text = text[end:]
            if self._markers != markers:
                continue  # an answer has begun, which may tell of markers
            if found is None:
                self._held = text
                return self._certain
            self._take(found[0])
            text = text[len(found[0]) :]

    def finish(self) -> list[ReasoningPiece | TextPiece]:
        """Ends the text; the rest of it."""
        self._certain = []
        self._write(self._held)
        if self._space and not self.is_thinking and not self._drops_space:
            self._certain.append(TextPiece(self._space))
        self._space = self._held = ""
        return self._certain

    @property
    def _markers(self) -> tuple[str, ...]:
        if self.is_thinking:
            return self._thinking.closings
        return self._openings + self._others

    @property
    def _openings(self) -> tuple[str, ...]:
        return self._thinking.openings if self._thinking.is_repeated or not self._has_answer else ()

    def _take(self, taken: str) -> None:
        self._space, self._drops_space = "", True
        if not self.is_thinking and taken in self._others:
            return
        self.is_thinking = not self.is_thinking
        self._has_answer = self._has_answer or not self.is_thinking

    def _write(self, text: str) -> None:
        sure = text.rstrip()
        if sure:
            piece = sure.lstrip() if self._drops_space else self._space + sure
            self._certain.append(ReasoningPiece(piece) if self.is_thinking else TextPiece(piece))
            self._space, self._drops_space = "", False
            self._has_answer = self._has_answer or not self.is_thinking
        self._space += text[len(sure) :]


@lru_cache(maxsize=16)
def _search(markers: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, markers)) or "(?!)")


def held_back(text: str, markers: Sequence[str]) -> int:
    """How many characters at the end of a text may begin a marker."""
    most = max((len(marker) - 1 for marker in markers), default=0)
    for length in range(min(most, len(text)), 0, -1):
        if any(marker.startswith(text[-length:]) for marker in markers):
            return length
    return 0


def have_any(markers: Iterable[str], special_tokens: Iterable[str]) -> bool:
    """Whether some of these special tokens are in markers, so that text without special tokens would lack them."""
    tokens = tuple(special_tokens)
    return any(token in marker for marker in markers for token in tokens)


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """How the answers of one model mark reasoning.

    Args:
        openings, closings: markers around it.
        repeated: it may come anywhere; otherwise only where an answer begins, with nothing but white space before it.
        others: further markers in an answer's text that are not shown.
        opened: the values of `reasoning_effort` with which the prompt has opened reasoning, so that the answer begins
            within it; "": nothing was asked.
        efforts: the values of `reasoning_effort` that the model can be asked for.
    """

    openings: tuple[str, ...]
    closings: tuple[str, ...]
    repeated: bool = False
    others: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    efforts: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.openings + self.closings + self.others

    def split(self, effort: str | None) -> AnswerSplit:
        """An answer before its first character; `effort`: that was asked of it."""
        thinking = Thinking("", self.openings, self.closings, self.repeated, self.others)
        return AnswerSplit(ThinkingReader(thinking, is_open=(effort or "") in self.opened, drops_others=True))


def marks_from(fields: Mapping[str, Any] | None) -> ReasoningMarks | None:
    """The marks that `dataclasses.asdict` has made an object of; None: the model marks no reasoning."""
    if fields is None:
        return None
    made: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in fields.items()}
    return ReasoningMarks(**made)


class AnswerSplit:
    """One answer, divided into its reasoning and its text. What comes out depends on the text alone, not on its pieces.

    State: how far the committed text was read, and what came out.
    """

    def __init__(self, reader: ThinkingReader | None = None) -> None:
        self.reasoning = ""  # committed, as the next two
        self.text = ""
        self.reasoning_tokens = 0  # with those that mark it, and those that were read together with its end
        self._reader = reader  # None: the model marks no reasoning
        self.tokens = 0  # read so far
        self._read = 0  # characters

    @property
    def is_thinking(self) -> bool:
        """Whether the committed text ends within reasoning."""
        return self._reader is not None and self._reader.is_thinking

    def read(self, committed: str, tokens: int = 0) -> None:
        """Reads the committed text as it is now, and its tokens: it begins with what was read before."""
        was_thinking, reasoning = self.is_thinking, len(self.reasoning)
        self._push(committed[self._read :])
        self._read = len(committed)
        if was_thinking or self.is_thinking or len(self.reasoning) > reasoning:
            self.reasoning_tokens += tokens - self.tokens
        self.tokens = tokens

    def ahead(self, provisional: str = "") -> tuple[str, str]:
        """The reasoning and the text that follow if the answer ends with this text after what is committed."""
        ahead = copy(self)
        ahead.reasoning, ahead.text, ahead._reader = "", "", copy(self._reader)
        ahead._push(provisional)
        if ahead._reader is not None:
            ahead._take(ahead._reader.finish())
        return ahead.reasoning, ahead.text

    def _push(self, text: str) -> None:
        self._take([TextPiece(text)] if self._reader is None else self._reader.push(text))

    def _take(self, pieces: Sequence[ReasoningPiece | TextPiece]) -> None:
        reasoning, text, self.reasoning, self.text = self.reasoning, self.text, "", ""
        for piece in pieces:  # no other references: Python appends without a copy
            if isinstance(piece, ReasoningPiece):
                reasoning += piece.text
            else:
                text += piece.text
        self.reasoning, self.text = reasoning, text

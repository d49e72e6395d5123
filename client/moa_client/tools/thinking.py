"""Reads reasoning out of an answer's text as it comes; what is left may be read for calls. Pure.

Chat, page and endpoint tell reasoning from the answer by this alone; the page's script has the same rules.

White space around reasoning is dropped. Sources: the chat templates of DeepSeek-R1, Qwen3, Magistral and Gemma 4, and
https://github.com/openai/harmony/blob/main/docs/format.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from moa_client.tools.reading.markers import MarkerSearch
from moa_client.tools.reading.pieces import TextPiece


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Some text of a model's reasoning."""

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

    @property
    def marks(self) -> tuple[str, ...]:
        """Those that tokens of reasoning are counted by, where each is one token."""
        return tuple(filter(None, (*self.openings, *self.closings, self.first_mark)))

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


class ThinkingReader:
    """Splits one answer. What comes out depends on the text alone, not on its pieces.

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
        self._space: list[str] = []  # held until something follows it
        self._search = MarkerSearch()
        self._certain: list[tuple[bool, str]] = []  # whether it is reasoning, and the text

    def push(self, text: str) -> list[ReasoningPiece | TextPiece]:
        """Reads more text; what has become certain."""
        for char in text:
            self._search.add(char)
            while taken := self._search.take(self._markers):
                self._take(taken)
        return self._taken()

    def finish(self) -> list[ReasoningPiece | TextPiece]:
        """Ends the text; the rest of it."""
        for char in self._search.drain():
            self._write(char)
        if not self.is_thinking and not self._drops_space:
            self._certain.append((False, "".join(self._space)))
        self._space.clear()
        return self._taken()

    @property
    def _markers(self) -> tuple[str, ...]:
        if self.is_thinking:
            return self._thinking.closings
        return self._openings + self._others

    @property
    def _openings(self) -> tuple[str, ...]:
        return self._thinking.openings if self._thinking.is_repeated or not self._has_answer else ()

    def _take(self, taken: str) -> None:
        if not self.is_thinking and taken in self._others:
            self._space.clear()
            self._drops_space = True
        elif taken in self._markers:
            self.is_thinking = not self.is_thinking
            self._space.clear()
            self._drops_space = True
            self._has_answer = self._has_answer or not self.is_thinking
        else:
            self._write(taken)

    def _write(self, char: str) -> None:
        if char.isspace():
            self._space.append(char)
            return
        space = "" if self._drops_space else "".join(self._space)
        self._certain.append((self.is_thinking, space + char))
        self._space.clear()
        self._drops_space = False
        self._has_answer = self._has_answer or not self.is_thinking

    def _taken(self) -> list[ReasoningPiece | TextPiece]:
        pieces: list[ReasoningPiece | TextPiece] = []
        for is_reasoning, group in groupby(self._certain, key=itemgetter(0)):
            if text := "".join(each for _, each in group):
                pieces.append(ReasoningPiece(text) if is_reasoning else TextPiece(text))
        self._certain.clear()
        return pieces

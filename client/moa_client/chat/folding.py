"""What of answers a chat shows: their text, with their reasoning folded away or before it. Pure.

State: for each answer, how far it was split, and what of it is shown. Invariant: what is shown of committed text only
grows, as that does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Literal

from moa_client.conversation.answer_text import AnswerText
from moa_client.tools.thinking import AnswerSplit, ReasoningMarks

HEADING = "Thinking:\n"
BETWEEN = "\n\n"
Shows = Literal["fold", "show", "off"]


class Folding:
    """The answers of one conversation as they are shown.

    Args:
        marks: None: the model marks no reasoning.
        shows: the newest setting; an answer is shown as it was when it began.
    """

    def __init__(self, marks: ReasoningMarks | None, shows: Callable[[], Shows]) -> None:
        self.marks = marks
        self._shows = shows
        self._answers: dict[AnswerText, FoldedAnswer] = {}
        self._newest: FoldedAnswer | None = None

    @property
    def thinking_tokens(self) -> int:
        """Of the reasoning that is written now and not shown; 0: none is."""
        newest = self._newest
        return newest.split.reasoning_tokens if newest is not None and newest.is_thinking else 0

    def shown(self, text: AnswerText) -> AnswerText:
        """What of an answer is shown; the same object for the same answer."""
        return text if self.marks is None else self._folded(text, self.marks).shown(text)

    def split(self, text: AnswerText) -> AnswerSplit | None:
        """How far an answer is split; None: the model marks no reasoning."""
        return None if self.marks is None else self._folded(text, self.marks).split

    def forget(self, texts: Iterable[AnswerText]) -> None:
        for text in texts:
            self._answers.pop(text, None)

    def _folded(self, text: AnswerText, marks: ReasoningMarks) -> FoldedAnswer:
        if text not in self._answers:
            self._newest = FoldedAnswer(text, marks, is_open=self._shows() == "show")
            self._answers[text] = self._newest
        return self._answers[text]


_SAME = ("number", "finish", "tokens", "decided", "waiting", "withdrawn", "is_running", "is_unsettled", "options")
UNFOLDED = Folding(None, lambda: "show")


class FoldedAnswer:
    """One answer."""

    def __init__(self, text: AnswerText, marks: ReasoningMarks, *, is_open: bool) -> None:
        self.split = marks.split(text.options.reasoning_effort)
        self._marks = marks
        self._is_open = is_open
        self._shown = copy(text)
        self._shown.seen = 0
        self._committed = ""  # of what is shown
        self._seen = 0  # characters of the answer's own text

    @property
    def is_thinking(self) -> bool:
        """Whether it is written now, and only reasoning that is not shown."""
        return self._shown.is_running and self.split.is_thinking and not self._is_open

    def shown(self, text: AnswerText) -> AnswerText:
        shown = self._shown
        if text.seen > self._seen:
            self._read(text.committed[: text.seen], self.split.tokens)
            shown.seen, self._seen = len(self._committed), text.seen
        self._read(text.committed, text.tokens)
        rest = self._joined(self.split, *self.split.ahead(text.provisional))
        is_over = not (text.is_running or text.is_unsettled or text.provisional)
        shown.committed = self._committed + (rest if is_over else "")
        shown.provisional = "" if is_over else rest
        likely = self._joined(self.split, *self.split.ahead(text.provisional[: text.likely]))
        shown.likely = min(len(likely), len(shown.provisional))
        whole = self._marks.split(text.options.reasoning_effort)
        shown.ended = self._joined(whole, *whole.ahead(text.ended))
        for name in _SAME:
            setattr(shown, name, getattr(text, name))
        return shown

    def _read(self, committed: str, tokens: int) -> None:
        """Reads further; what is new is shown."""
        before = copy(self.split)
        self.split.read(committed, tokens)
        reasoning, text = self.split.reasoning[len(before.reasoning) :], self.split.text[len(before.text) :]
        self._committed += self._joined(before, reasoning, text)

    def _joined(self, before: AnswerSplit, reasoning: str, text: str) -> str:
        if not self._is_open:
            return text
        heading = HEADING if reasoning and not before.reasoning else ""
        is_first = bool(text and not before.text and (reasoning or before.reasoning))
        return heading + reasoning + (BETWEEN if is_first else "") + text

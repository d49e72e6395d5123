"""How answers are shown: on a terminal (`page`), on a pipe, or as lines of JSON for a program.

A view receives each update after the answer's text has applied it. State of a folding: for each answer, how far it was
split into reasoning and text; what is shown of committed text only grows, as that does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from moa_shared.errors import MoaError

from moa_client.chat import messages
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.surface.messages import ConversationFacts, fields_of
from moa_client.tools.answer_reader import AnswerSplit, split_by
from moa_client.tools.thinking import ReasoningMarks

Write = Callable[[str], None]
Shows = Literal["fold", "show", "off"]
# A program gets all provisional text instead of what is added to it.
SURFACES_ONLY = ("answer", "status", "added", "runs")


class Folding:
    """The answers of one conversation as they are shown: with their reasoning folded away, or before their text.

    `marks`: None: the model marks no reasoning. `shows`: the newest setting; an answer is shown as it was when it
    began.
    """

    def __init__(self, marks: ReasoningMarks | None = None, shows: Callable[[], Shows] = lambda: "show") -> None:
        self.marks = marks
        self._shows = shows
        self._answers: dict[AnswerText, FoldedAnswer | None] = {}

    def shown(self, text: AnswerText) -> AnswerText:
        folded = self._folded(text)
        return text if folded is None else folded.shown(text)

    def split(self, text: AnswerText) -> AnswerSplit | None:
        """How far an answer is split; None: its model marks no reasoning."""
        folded = self._folded(text)
        return None if folded is None else folded.split

    def thinking_tokens(self, text: AnswerText) -> int:
        """Of the reasoning that is written now and not shown; 0: none is."""
        folded = self._answers.get(text)
        is_thinking = folded is not None and text.is_running and folded.split.is_thinking and not folded.is_open
        return folded.split.reasoning_tokens if folded is not None and is_thinking else 0

    def forget(self, texts: Iterable[AnswerText]) -> None:
        for text in texts:
            self._answers.pop(text, None)

    def _folded(self, text: AnswerText) -> FoldedAnswer | None:
        if text not in self._answers:
            marks = text.options.marks if text.options.model else self.marks
            effort, is_open = text.options.reasoning_effort, self._shows() == "show"
            splits = None if marks is None else (split_by(marks, effort), split_by(marks, effort))
            self._answers[text] = None if splits is None else FoldedAnswer(*splits, is_open=is_open)
        return self._answers[text]


class FoldedAnswer:
    """One answer. `split`, `whole`: of it, before its first character; `is_open`: its reasoning is shown."""

    def __init__(self, split: AnswerSplit, whole: AnswerSplit, *, is_open: bool) -> None:
        self.split = split
        self.is_open = is_open
        self._whole = whole
        self._committed = ""  # of what is shown
        self._seen = 0, 0  # characters of the answer's own text, and of what is shown

    def shown(self, text: AnswerText) -> AnswerText:
        if text.seen > self._seen[0]:
            self._read(text.committed[: text.seen], self.split.tokens)
            self._seen = text.seen, len(self._committed)
        self._read(text.committed, text.tokens)
        rest = self._ahead(self.split, text.provisional)
        is_over = not (text.is_running or text.is_unsettled or text.provisional)
        return replace(
            text,
            committed=self._committed + (rest if is_over else ""),
            provisional="" if is_over else rest,
            likely=min(len(rest), len(self._ahead(self.split, text.provisional[: text.likely]))),
            seen=self._seen[1],
            ended=self._ahead(self._whole, text.ended),
        )

    def _read(self, committed: str, tokens: int) -> None:
        before = copy(self.split)
        self.split.read(committed, tokens)
        reasoning, text = self.split.reasoning[len(before.reasoning) :], self.split.text[len(before.text) :]
        self._committed += self._joined(before, reasoning, text)

    def _ahead(self, split: AnswerSplit, text: str) -> str:
        return self._joined(split, *split.ahead(text))

    def _joined(self, before: AnswerSplit, reasoning: str, text: str) -> str:
        if not self.is_open:
            return text
        heading = "Thinking:\n" if reasoning and not before.reasoning else ""
        is_first = bool(text and not before.text and (reasoning or before.reasoning))
        return heading + reasoning + ("\n\n" if is_first else "") + text


class View:
    """Where answers are shown. `say`: takes what a person is told besides."""

    def __init__(self, say: Write) -> None:
        self.say = say
        self.folding = Folding()
        # The newest status line, given why the link is as it is and what is shown of the answer that is written now.
        self.status: Callable[[str, AnswerText | None], str] = lambda reason, text: reason

    def begin(self) -> None:
        """Called when a question has been asked."""

    def show(self, update: Update, text: AnswerText) -> None:
        """Shows an update about the answer that is written now, or about none."""
        raise NotImplementedError

    def show_earlier(self, update: Update, text: AnswerText) -> None:
        """Shows what was decided about an earlier answer."""
        if words := messages.settled_remark(update.event, self.folding.shown(text)):
            self.say(words)

    def end(self, text: AnswerText) -> None:
        """Called when nothing more comes; `text` may hold the last committed piece of a broken answer."""

    def forget(self, texts: Iterable[AnswerText]) -> None:
        """None of these answers of before will be decided any more."""
        self.folding.forget(texts)

    def close(self) -> None:
        """Called when nothing more will be shown."""


class PipeView(View):
    """Writes only committed text; text still unverified at the end is written last, if that is wanted.

    `unverified`: write text that no server has verified.
    """

    def __init__(self, write: Write, say: Write, *, unverified: bool) -> None:
        super().__init__(say)
        self._write = write
        self._unverified = unverified
        self._written = 0  # characters of committed text
        self._has_waited = False

    def begin(self) -> None:
        self._written, self._has_waited = 0, False

    def show(self, update: Update, text: AnswerText) -> None:
        event = update.event
        self._write_more(self.folding.shown(text), "")
        waits = isinstance(event, events.LinkChanged) and event.state is events.LinkState.WAITING
        if not (waits and self._has_waited) and (words := messages.event_words(event)):  # it may come every few seconds
            self.say(words)
        self._has_waited |= waits

    def end(self, text: AnswerText) -> None:
        shown = self.folding.shown(text)
        rest = shown.provisional if self._unverified else ""
        self._write_more(shown, rest + ("\n" if shown.unseen + rest else ""))
        if text.waiting:
            self.say(messages.unverified_words(len(text.waiting), is_printed=self._unverified))

    def _write_more(self, text: AnswerText, rest: str) -> None:
        if piece := text.committed[max(self._written, text.seen) :] + rest:
            self._write(piece)
        self._written = len(text.committed)


class JsonView(View):
    """Writes one line for each update. docs/client.md describes the lines."""

    def __init__(self, write: Write, say: Write) -> None:
        super().__init__(say)
        self._write = write

    def show(self, update: Update, text: AnswerText) -> None:
        self._write(event_line(update, text, self.folding.split(text)))

    def show_earlier(self, update: Update, text: AnswerText) -> None:
        if isinstance(update.event, events.Settled | events.Refused):
            self.show(update, text)


def event_line(update: Update, text: AnswerText, split: AnswerSplit | None = None) -> str:
    """The line for one update; empty for what another line tells.

    `text`: of the answer, after it; `split`: of that before it, which reads it; None: the model marks no reasoning.
    """
    event = update.event
    if isinstance(event, events.Failed | events.NotKept | events.Rewound | events.Titled):
        return ""
    fields = {name: value for name, value in fields_of(update).items() if name not in SURFACES_ONLY}
    if isinstance(event, events.Settled):
        fields["text"] = text.committed
    elif isinstance(event, events.Committed | events.Provisional | events.Corrected | events.Ended):
        fields["provisional"], fields["likely"] = text.provisional, text.likely
    if split is None:
        return _line(**fields)
    before = AnswerSplit() if isinstance(event, events.Settled) else copy(split)
    split.read(text.committed, text.tokens)
    is_over = not (text.is_running or text.is_unsettled)
    reasoning, rest = split.ahead(text.provisional)
    if "text" in fields:
        fields["reasoning"] = split.reasoning[len(before.reasoning) :] + (reasoning if is_over else "")
        fields["text"] = split.text[len(before.text) :] + (rest if is_over else "")
    if "provisional" in fields:
        fields |= {"provisional_reasoning": "" if is_over else reasoning, "provisional": "" if is_over else rest}
        fields["likely"] = len(split.ahead(text.provisional[: text.likely])[1])
    return _line(**fields)


def error_line(error: MoaError) -> str:
    """The line that says why there is no (more) answer."""
    return _line("error", code=error.code, message=error.message, hint=error.hint)


def ready_line(facts: ConversationFacts) -> str:
    level = {"level": facts.level, "exact": facts.exact} if facts.level else None
    standalone = facts.standalone or facts.drafter
    drafter = {"name": facts.drafter, "reason": facts.drafter_reason, "standalone": standalone}
    about = {"target": facts.target, "server": facts.server, "online": facts.online}
    return _line("ready", **about, execution=level, drafter=drafter if facts.drafter else None)


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields}) + "\n"  # ASCII: any output can hold it, and no terminal acts on it

"""The text of an answer: committed text, then provisional text, as its events add up to it. Pure.

The host of a conversation holds its answers so, and each surface holds them as far as it has read its updates.
Invariants: committed text only grows; its runs are as long as it.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_options import OPEN, AnswerOptions
from moa_client.conversation.events import (
    Asked,
    Committed,
    Continued,
    Corrected,
    Ended,
    Failed,
    Provisional,
    Refused,
    Rewound,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.text_runs import TextRun, fitted, joined
from moa_client.conversation.updates import Update


@dataclass(eq=False, slots=True)
class AnswerText:
    """One answer.

    Args:
        question: what it answers.
        number: in its conversation, from 1.
        options: how it is chosen.
        ended: all text when it ended without the server.
        tokens: committed ones; `decided`: those of them since it ended without the server.
        waiting: provisional tokens.
        seen: characters of committed text that its reader had seen before it was continued.
        runs: who wrote the committed text.
        is_unsettled: it ended without the server, which has not decided it yet.
    """

    question: str = ""
    number: int = 0
    options: AnswerOptions = OPEN
    finish: Finish = Finish.UNFINISHED
    committed: str = ""
    provisional: str = ""
    ended: str = ""
    tokens: int = 0
    decided: int = 0
    waiting: tuple[int, ...] = ()
    seen: int = 0
    runs: tuple[TextRun, ...] = ()
    is_running: bool = True
    is_unsettled: bool = False

    def __post_init__(self) -> None:
        if not self.runs:
            self.runs = joined((TextRun(len(self.committed)),))

    @property
    def unseen(self) -> str:
        """The committed text, without what its reader had seen before it was continued."""
        return self.committed[self.seen :]

    @property
    def may_continue(self) -> bool:
        """Whether its end was none of its own: a limit, the user, or an error."""
        own = (Finish.END_OF_TEXT, Finish.STOP, Finish.CONTEXT, Finish.LOOP)
        return bool(self.committed) and not (self.is_running or self.is_unsettled or self.finish in own)

    def apply(self, event: SurfaceEvent) -> None:
        """Applies an event of this answer."""
        match event:
            case Continued(options):
                self.options, self.finish, self.is_running = options, Finish.UNFINISHED, True
            case Committed(tokens, confirmed, text, runs=runs):
                self._commit(len(tokens), text, runs)
                self.waiting = self.waiting[confirmed:]
                self.provisional = self.provisional[len(text) :] if self.waiting else ""
            case Provisional(tokens, _, added):
                self.waiting += tokens
                self.provisional += added
            case Corrected():
                self._withdraw()
            case Ended(finish, provisional=True, added=added):
                self.provisional += added
                self.ended, self.decided = self.committed + self.provisional, 0
                self.finish, self.is_running, self.is_unsettled = finish, False, True
            case Ended(finish, text=text):
                self._commit(0, text)
                self._end(finish)
            case Settled(tokens, finish=finish, text=text):
                self._commit(max(0, len(tokens) - self.decided), text)
                self._end(finish)
            case Failed(text=text):
                self._commit(0, text)
                self._withdraw()
                self.is_running = False
            case Refused():
                self.is_unsettled = False

    def _commit(self, tokens: int, text: str, runs: tuple[TextRun, ...] = ()) -> None:
        self.tokens += tokens
        self.decided += tokens
        self.committed += text
        if not tokens:
            self.runs = fitted(self.runs, len(self.committed))
        else:
            self.runs = self.runs[:-1] + joined((*self.runs[-1:], *(runs or (TextRun(len(text)),))))

    def _withdraw(self) -> None:
        self.waiting, self.provisional = (), ""

    def _end(self, finish: Finish) -> None:
        """The server has decided all of it."""
        self._withdraw()
        self.finish, self.is_running, self.is_unsettled = finish, False, False


def apply_update(answers: list[AnswerText], update: Update) -> AnswerText | None:
    """Applies an update to the answers of its conversation, oldest first; the answer that it is about."""
    event = update.event
    if isinstance(event, Asked | Rewound):
        kept = update.answer - 1 if isinstance(event, Asked) else event.answers
        answers[:] = [text for text in answers if text.number <= kept]
    if isinstance(event, Asked):
        answers.append(AnswerText(event.question, update.answer, event.options))
    text = next((text for text in reversed(answers) if text.number == update.answer), None)
    if text is not None:
        text.apply(event)
    return text

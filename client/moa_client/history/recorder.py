"""Writes one conversation into the history as its engine tells it.

State: which answers are open, and how many tokens are stored. `on_event` is called before what the event brings is
shown. After an error nothing more may be recorded: what is stored is the conversation up to there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.conversation import Conversation, Provenance
from moa_client.conversation.events import Committed, Corrected, Earlier, Ended, Event, Provisional, Refused, Settled
from moa_client.history.records import StoredConversation
from moa_client.history.store import HistoryStore


@dataclass(slots=True)
class _Open:
    """An answer that is running, or waits for a server: its key, and its provisional tokens."""

    key: int
    waiting: list[int] = field(default_factory=list)


class Recorder:
    """Records the events of a conversation.

    Args:
        store: where.
        identifier: of the conversation, which the store has created.
        conversation: the engine's.
        stored: what the store holds of it, if it was reopened.
    """

    def __init__(
        self,
        store: HistoryStore,
        identifier: str,
        conversation: Conversation,
        stored: StoredConversation | None = None,
    ) -> None:
        self.identifier = identifier
        self._store = store
        self._conversation = conversation
        self._current: _Open | None = None
        self._unsettled: deque[_Open] = deque()
        self._newest: int | None = None  # the key of the newest answer
        self._stored = 0  # tokens
        if stored is not None:
            self._follow(stored)

    def begin(self, question: str, options: AnswerOptions) -> None:
        """A question is asked; the events of its answer follow."""
        self._newest = self._store.begin_answer(self.identifier, question, options)
        self._current = _Open(self._newest)

    def continue_answer(self, options: AnswerOptions) -> None:
        """The newest answer goes on; its events follow."""
        if self._newest is not None:
            self._store.continue_answer(self._newest, options)
            self._current = _Open(self._newest)

    def on_event(
        self, event: Event, piece: str = "", provisional: str = "", figures: Mapping[str, float] | None = None
    ) -> None:
        """Stores what an event of the conversation brings.

        Args:
            piece: what it adds to the committed text of the answer that it is about.
            provisional: all provisional text of that answer after it.
            figures: with `Ended`, what the answer cost.
        """
        if isinstance(event, Earlier):
            if self._unsettled:
                self._record(self._unsettled[0], event.event, piece, provisional)
        elif isinstance(event, Settled | Refused):
            if self._unsettled:
                key = self._unsettled.popleft().key
                if isinstance(event, Settled):
                    self._store.settle(key, _name(event.finish), event.outcome.value, text=piece)
                else:
                    self._store.refuse(key)
        elif self._current is None:
            return
        elif isinstance(event, Ended):
            answer, self._current = self._current, None
            if event.provisional:
                self._unsettled.append(answer)
            self._store.end_answer(
                answer.key,
                _name(event.finish),
                verified=not event.provisional,
                text=piece,
                provisional=provisional,
                figures=figures,
            )
        elif isinstance(event, Committed | Provisional | Corrected):
            self._record(self._current, event, piece, provisional)

    def fail(self, piece: str = "") -> None:
        """An error, or an impatient user, has ended the current answer with what is committed of it.

        Args:
            piece: what remains of its committed text.
        """
        answer, self._current = self._current, None
        if answer is not None:
            self._store.end_answer(answer.key, "", text=piece)

    def take_back(self) -> None:
        """The current question got no answer and is to be forgotten."""
        answer, self._current = self._current, None
        if answer is not None:
            self._store.take_back(answer.key)

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers of those that the history shows; the engine was rewound before."""
        self._store.rewind(self.identifier, answers)
        self._follow(self._store.load(self.identifier))

    def set_title(self, title: str) -> None:
        """Names the conversation."""
        self._store.set_title(self.identifier, title)

    # ------------------------------------------------------------ inside

    def _follow(self, stored: StoredConversation) -> None:
        self._unsettled = deque(
            _Open(answer.key, list(answer.waiting)) for answer in stored.answers if answer.standing.is_open
        )
        self._newest = stored.answers[-1].key if stored.answers else None
        self._stored = sum(len(answer.tokens) for answer in stored.answers)

    def _record(self, answer: _Open, event: Committed | Provisional | Corrected, piece: str, provisional: str) -> None:
        waiting = answer.waiting
        if isinstance(event, Provisional):
            waiting += event.tokens
            self._store.set_provisional(answer.key, waiting, provisional, shown=len(event.tokens))
        elif isinstance(event, Corrected):
            waiting.clear()
            self._store.set_provisional(answer.key, waiting, provisional)
        else:
            del waiting[: event.confirmed]
            start = stop = self._stored
            provenance = self._conversation.provenance
            while provenance[stop] is Provenance.PROMPT:  # the question, before the first tokens of its answer
                stop += 1
            stop = self._stored = stop + len(event.tokens)
            self._store.append_committed(
                answer.key,
                self._conversation.tokens[start:stop],
                provenance[start:stop],
                piece,
                confirmed=event.confirmed,
                waiting=waiting,
                provisional=provisional,
            )


def _name(finish: Finish) -> str:
    return finish.name.lower()

"""Writes one conversation into the history as its engine tells it, and makes the state with which an engine continues.

State: which rows its answers have, and how many tokens are stored. `on_event` is called before what the event brings is
shown. After an error nothing more may be recorded: what is stored is the conversation up to there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.conversation import Conversation, ConversationState, Job, Turn
from moa_client.conversation.events import BY_LETTER, Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import StoredAnswer, StoredConversation
from moa_client.history.store import HistoryStore


def restored(stored: StoredConversation, turn_of: Callable[[str, AnswerOptions], Turn]) -> ConversationState:
    """What `HistoryStore.reopen` has given, for `ClientEngine.restore`.

    `turn_of`: makes a question's tokens from its text and what was asked of its answer, after the text before it.
    """
    parts = [answer for answer in stored.answers if answer.is_part]
    tokens: list[int] = []
    turns = []
    for answer in parts:
        if answer.tokens:
            turns.append(len(tokens))
            tokens += answer.tokens
    waiting = [answer for answer in parts if answer.standing.is_open]
    return ConversationState(
        tokens,
        [BY_LETTER[letter] for answer in parts for letter in answer.provenance.decode()],
        turns,
        [_job(answer, turn_of(answer.question, answer.options)) for answer in waiting],
        is_begun=bool(waiting and waiting[0].tokens),
    )


def _job(answer: StoredAnswer, turn: Turn) -> Job:
    settings = answer.options.settings()
    if answer.stopped_at is not None:
        settings = replace(settings, max_tokens=answer.stopped_at)
    question = answer.question_tokens
    return Job(
        turn,
        settings,
        written=list(answer.waiting),
        finish=Finish[answer.finish.upper()] if answer.finish else Finish.UNFINISHED,
        verified=list(answer.tokens[question + answer.decided_from :]),
        corrected=answer.is_corrected,
        shown=answer.shown,
        kept=answer.kept,
        left=not answer.finish or answer.finish == "unfinished",
    )


class HistoryRecorder:
    """Records the events of a conversation.

    Args:
        identifier: of the conversation, which the store has created.
        stored: what the store holds of it, if it was reopened.
    """

    def __init__(
        self, store: HistoryStore, identifier: str, conversation: Conversation, stored: StoredConversation | None = None
    ) -> None:
        self.identifier = identifier
        self._store = store
        self._conversation = conversation
        self._keys: list[int] = []  # of all answers, in order
        self._is_running = False  # the newest of them
        self._stored = 0  # tokens
        if stored is not None:
            self._follow(stored)

    def begin(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        """A question is asked; the events of its answer follow.

        `instead_of`: in the place of the answer of this number, and of those after it; 0: after all.
        """
        if instead_of:
            self.rewind(instead_of - 1, keeps_version=True)
        self._keys.append(self._store.begin_answer(self.identifier, question, options))
        self._is_running = True

    def continue_answer(self, options: AnswerOptions) -> None:
        """The newest answer goes on; its events follow."""
        self._store.continue_answer(self._keys[-1], options)
        self._is_running = True

    def on_event(self, event: events.AnswerEvent, text: AnswerText, figures: Mapping[str, float] | None = None) -> None:
        """Stores what an event of an answer brings. `figures`: with `Ended`, what the answer cost."""
        key = self._keys[text.number - 1]
        match event:
            case events.Committed():
                self._append(key, event, text)
            case events.Provisional(tokens):
                self._store.set_provisional(key, text.waiting, text.provisional, shown=len(tokens))
            case events.Corrected():
                self._store.set_provisional(key, (), "")
            case events.Ended(finish, provisional, rest):
                self._is_running = False
                waiting, verified, finish_name = text.provisional, not provisional, finish.name.lower()
                self._store.end_answer(
                    key, finish_name, verified=verified, text=rest, provisional=waiting, figures=figures
                )
            case events.Settled(finish=finish, outcome=outcome, text=rest):
                self._store.settle(key, finish.name.lower(), outcome.value, text=rest)
            case events.Refused():
                self._store.refuse(key)

    def fail(self, rest: str = "") -> None:
        """An error, or an impatient user, has ended the running answer with what is committed of it."""
        if self._is_running:
            self._is_running = False
            self._store.end_answer(self._keys[-1], "", text=rest)

    def take_back(self) -> None:
        """The running answer's question got no answer and is to be forgotten."""
        if self._is_running:
            self._is_running = False
            self._store.take_back(self._keys.pop())

    def rewind(self, answers: int, *, keeps_version: bool = False) -> None:
        """Keeps the first `answers` answers of those that the history shows; the engine was rewound before."""
        self._store.rewind(self.identifier, answers, keeps_version=keeps_version)
        self._follow(self._store.load(self.identifier))

    def set_title(self, title: str) -> None:
        self._store.set_title(self.identifier, title)

    def _follow(self, stored: StoredConversation) -> None:
        self._keys = [answer.key for answer in stored.answers]
        self._stored = sum(len(answer.tokens) for answer in stored.answers)

    def _append(self, key: int, event: events.Committed, text: AnswerText) -> None:
        """Stores committed tokens; before the first ones of an answer come those of its question."""
        start = stop = self._stored
        provenance = self._conversation.provenance
        while provenance[stop] is Provenance.PROMPT:
            stop += 1
        stop = self._stored = stop + len(event.tokens)
        self._store.append_committed(
            key,
            self._conversation.tokens[start:stop],
            provenance[start:stop],
            event.text,
            confirmed=event.confirmed,
            waiting=text.waiting,
            provisional=text.provisional,
        )

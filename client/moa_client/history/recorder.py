"""Writes one conversation into the history as its engine tells it, and makes the state with which an engine continues.

State: which rows its answers have, and how many tokens are stored. `on_event` is called before what the event brings is
shown. After an error nothing more may be recorded: what is stored is the conversation up to there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from moa_shared.protocol.messages import Finish

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, TextStream, Update
from moa_client.conversation.conversation import Conversation, ConversationState, OpenAnswer, Turn
from moa_client.conversation.events import BY_LETTER, Provenance, TextRun, fitted, runs_of
from moa_client.conversation.figures import Figures
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin, StoredAnswer, StoredConversation
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


def _job(answer: StoredAnswer, turn: Turn) -> OpenAnswer:
    settings = answer.options.settings()
    if answer.stopped_at is not None:
        settings = replace(settings, max_tokens=answer.stopped_at)
    question = answer.question_tokens
    return OpenAnswer(
        turn,
        settings,
        written=list(answer.waiting),
        finish=Finish[answer.finish.upper()] if answer.finish else Finish.UNFINISHED,
        verified=list(answer.tokens[question + answer.decided_from :]),
        corrected=answer.is_corrected,
        figures=Figures(provisional=answer.shown, undecided=len(answer.waiting), kept=answer.kept),
        left=not answer.finish or answer.finish == "unfinished",
    )


class HistoryRecorder:
    """Records the events of a conversation.

    `identifier`: of the conversation, which the store has created. `stored`: what the store holds of it, if it was
    reopened.
    """

    def __init__(
        self, store: HistoryStore, identifier: str, conversation: Conversation, stored: StoredConversation | None = None
    ) -> None:
        self.identifier = identifier
        self._store = store
        self._conversation = conversation
        self._keys: list[int] = []  # of all answers, in order
        self._stored = 0  # tokens
        if stored is not None:
            self._follow(stored)

    def change_model(self, conversation: Conversation, origin: ConversationOrigin, before: AnswerOptions) -> None:
        """Another model continues, in tokens of its own; `before`: which has given the answers so far."""
        given = {name: value for name, value in before.fields().items() if name in ("model", "marks")}
        self._store.attribute(self.identifier, given)
        self._store.set_origin(self.identifier, origin)
        self._conversation, self._stored = conversation, 0

    def on_update(
        self, update: Update, text: AnswerText | None = None, figures: Mapping[str, float] | None = None
    ) -> None:
        """Stores what an update brings. `text`: of the answer that it is about; `figures`: what that cost."""
        key = self._keys[update.answer - 1] if 0 < update.answer <= len(self._keys) else 0
        match update.event:
            case events.Asked(question, options):
                if key:
                    self._rewind(update.answer - 1, keeps_version=True)
                self._keys.append(self._store.begin_answer(self.identifier, question, options))
            case events.Continued(options):
                self._store.continue_answer(key, options)
            case events.Rewound(answers) if answers < len(self._keys):
                self._rewind(answers)
            case events.Titled(title):
                self._store.set_title(self.identifier, title)
            case _ if text is not None and key:
                self._on_answer(key, update.event, text, figures)

    def _on_answer(
        self, key: int, event: events.SurfaceEvent, text: AnswerText, figures: Mapping[str, float] | None
    ) -> None:
        match event:
            case events.Committed():
                self._append(key, event, text)
            case events.Provisional(tokens):
                self._store.set_provisional(key, text.waiting, text.provisional, shown=len(tokens))
            case events.Corrected():
                self._store.set_provisional(key, (), "")
            case events.Failed() | events.Ended(provisional=False) if not text.tokens:
                self._store.take_back(self._keys.pop())  # its question got no answer
            case events.Failed(text=rest):
                self._store.end_answer(key, "", text=rest)
            case events.Ended(finish, provisional, rest):
                name, waiting = finish.name.lower(), text.provisional
                self._store.end_answer(
                    key, name, verified=not provisional, text=rest, provisional=waiting, figures=figures
                )
            case events.Settled(finish=finish, outcome=outcome, text=rest):
                self._store.end_answer(key, finish.name.lower(), outcome=outcome.value, text=rest)
            case events.Refused():
                self._store.refuse(key)

    def _rewind(self, answers: int, *, keeps_version: bool = False) -> None:
        """Keeps the first `answers` answers of those that the history shows; the engine was rewound before."""
        self._store.rewind(self.identifier, answers, keeps_version=keeps_version)
        self._follow(self._store.load(self.identifier))

    def _follow(self, stored: StoredConversation) -> None:
        self._keys = [answer.key for answer in stored.answers]
        self._stored = sum(len(answer.tokens) for answer in stored.answers if not answer.options.model)

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


def reopened(
    stored: StoredAnswer, number: int, decode: Callable[[Sequence[int]], str], *, has_runs: bool = False
) -> AnswerDecoder:
    """A kept answer as it was shown, with what decodes its further events. `number`: in its conversation, from 1."""
    text = AnswerText(
        stored.question,
        number,
        stored.options,
        Finish[stored.finish.upper()] if stored.finish else Finish.UNFINISHED,
        stored.text,
        stored.provisional,
        tokens=stored.answer_tokens,
        waiting=tuple(stored.waiting),
        is_running=False,
        is_unsettled=stored.standing.is_open,
        runs=_runs(stored, decode) if has_runs and not stored.options.model else (),
        versions=stored.versions,
    )
    decoder = AnswerDecoder(text, decode)
    if stored.standing.is_open:
        decoder.restore(stored.tokens[stored.question_tokens :], stored.waiting)
        text.decided = text.tokens - stored.decided_from
    text.ended = text.committed + text.provisional
    return decoder


def _runs(stored: StoredAnswer, decode: Callable[[Sequence[int]], str]) -> tuple[TextRun, ...]:
    stream, start = TextStream(decode, stored.options.stop), stored.question_tokens
    lengths = [len(stream.push((token,))) for token in stored.tokens[start:]]
    return fitted(
        runs_of(lengths, [BY_LETTER[letter] for letter in stored.provenance[start:].decode()]), len(stored.text)
    )

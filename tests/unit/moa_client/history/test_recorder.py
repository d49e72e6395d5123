"""What is recorded as it happens is what an engine continues with, wherever the program is killed."""

from collections import deque
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis.stateful import invariant, rule
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.conversation import Conversation, OpenAnswer, Phase, Turn
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin, StoredAnswer
from moa_client.history.recorder import HistoryRecorder, restored
from moa_client.history.store import HistoryStore
from moa_shared.errors import InternalError
from moa_shared.protocol.messages import Ask, Finish

from tests.support.skipping import examples
from tests.unit.moa_client.conversation.test_open_answers import VOCAB, AnyOrder, Shown


def words(tokens: Sequence[int]) -> str:
    return "".join(f"{token} " for token in tokens)


def turn_of(question: str, _: object = None) -> Turn:
    return lambda _: [int(question)]


class AnyOrderKept(AnyOrder):
    """The same user, server and device, with a history; and somebody who kills the program."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.statements: list[str] = []
        self.store, self.another = self.opened(), self.opened()
        self.identifier = self.store.create(ConversationOrigin("toy"))
        self.recorder = HistoryRecorder(self.store, self.identifier, self.conversation)

    def opened(self) -> HistoryStore:
        store = HistoryStore(Path(self.folder.name))
        store.database.connection.set_trace_callback(self.statements.append)
        return store

    def teardown(self) -> None:
        self.store.close()
        self.another.close()
        self.folder.cleanup()

    # ------------------------------------------------------------ recorded before it is shown

    def read(self, answer: Sequence[int] = ()) -> None:
        for event in list(self.queue.events):
            self.queue.events = deque([event])
            self.record(event)
            super().read(answer)

    def record(self, event: events.Event) -> None:
        is_earlier = isinstance(event, events.Earlier | events.Settled | events.Refused)
        shown = self.earlier[0] if is_earlier else self.reading
        assert shown is not None
        waiting = shown.provisional
        taken = event.event if isinstance(event, events.Earlier) else event
        assert isinstance(taken, events.AnswerEvent)
        match taken:
            case events.Committed(tokens, confirmed):
                waiting, taken = waiting[confirmed:], replace(taken, text=words(tokens))
            case events.Provisional(tokens):
                waiting = [*waiting, *tokens]
            case events.Corrected() | events.Settled():
                waiting = []
        text = AnswerText(number=self.row_of(shown), provisional=words(waiting), waiting=tuple(waiting), tokens=1)
        self.statements.clear()
        self.recorder.on_update(Update(taken, text.number), text)
        assert self.statements.count("COMMIT") == 1  # a kill finds all of it, or nothing

    def row_of(self, shown: Shown) -> int:
        """The number of the row that an open answer has in the history."""
        rows = [number for number, row in enumerate(self.stored_answers(), 1) if row.standing.is_open]
        return rows[self.open_answers.index(shown)]

    @property
    def open_answers(self) -> Sequence[Shown]:
        return [*self.earlier, *([self.reading] if self.reading is not None else [])]

    def stored_answers(self) -> Sequence[StoredAnswer]:
        return self.another.load(self.identifier).answers  # as a program reads it after a kill

    def begin(self, turn: list[int], max_tokens: int) -> Ask | None:
        asked = events.Asked(words(turn), AnswerOptions(max_tokens=max_tokens, loop_guard=False))
        self.recorder.on_update(Update(asked, len(self.stored_answers()) + 1))
        return super().begin(turn, max_tokens)

    def leave(self) -> None:
        super().leave()
        number = len(self.stored_answers())
        self.recorder.on_update(
            Update(events.Failed(InternalError("Gone.")), number), AnswerText(number=number, tokens=1)
        )

    def keep_answers(self, answers: int) -> bool:
        cropped = super().keep_answers(answers)
        rows = self.stored_answers()
        parts = [place for place, row in enumerate(rows, 1) if row.is_part]
        self.recorder.on_update(Update(events.Rewound(parts[answers - 1] if answers else 0)))
        return cropped

    # ------------------------------------------------------------ a kill

    @rule()
    def kill(self) -> None:
        before, jobs = self.conversation, list(self.queue._open)
        running = self.queue.current
        if self.reading is not None:
            self.reading.ended = [*self.reading.committed], [*self.reading.provisional]
            self.earlier.append(self.reading)
            self.reading = None
        self.store.close()
        self.store = self.opened()
        stored = self.store.reopen(self.identifier)
        self.conversation = Conversation(VOCAB)
        self.queue = OpenAnswers(self.conversation, self.queue.end_rule)
        self.queue.restore(restored(stored, turn_of))
        self.recorder = HistoryRecorder(self.store, self.identifier, self.conversation, stored)
        after = self.conversation
        assert (after.tokens, after.provenance, after.turns) == (before.tokens, before.provenance, before.turns)
        assert after.phase is before.phase
        if after.phase is Phase.ANSWERING:
            assert after.answer_start == before.answer_start
        assert after.hashes.at(len(after.tokens)) == before.hashes.at(len(before.tokens))
        for mine, theirs in zip(self.queue._open, jobs, strict=True):
            if theirs is running:
                theirs.left = theirs.finish is Finish.UNFINISHED
            irrelevant = {"turn", "figures"}
            assert (mine.figures.provisional, mine.figures.kept) == (theirs.figures.provisional, theirs.figures.kept)
            if theirs is jobs[0]:
                irrelevant.add("asked")  # it was asked after other text
            if theirs.corrected:
                irrelevant |= {"finish", "left"}  # the text that ended it is gone
            assert differing(mine, theirs) <= irrelevant

    @invariant()
    def all_that_was_shown_is_kept(self) -> None:
        rows, shown = [row for row in self.stored_answers() if row.standing.is_open], self.open_answers
        assert [row.text for row in rows] == [words(each.committed) for each in shown]
        assert [row.provisional for row in rows] == [words(each.provisional) for each in shown]
        assert [row.waiting for row in rows] == [tuple(each.provisional) for each in shown]


def differing(mine: OpenAnswer, theirs: OpenAnswer) -> set[str]:
    return {each.name for each in fields(OpenAnswer) if getattr(mine, each.name) != getattr(theirs, each.name)}


TestAnyOrderKept = AnyOrderKept.TestCase
TestAnyOrderKept.settings = settings(max_examples=examples(100), stateful_step_count=30)

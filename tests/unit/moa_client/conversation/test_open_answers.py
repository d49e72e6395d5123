"""Answers that the user stops without the server; and any order of what user, server and device do."""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from inline_snapshot import snapshot
from moa_client.conversation import events
from moa_client.conversation.answer_text import WORTH_KEEPING
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.open_answers import OpenAnswers
from moa_shared.errors import ContextLengthError, DataError, ProtocolError
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish, FinishRule, Verdict
from moa_shared.tree import DraftTree

from tests.support.messages import raises, says
from tests.support.skipping import examples

PROMPT, RULE = [1, 2, 3], FinishRule(AnswerSettings(), 0, 1000, frozenset(), str)


def asked() -> OpenAnswers:
    answers = OpenAnswers(Conversation(50), RULE)
    answers.begin(lambda _: PROMPT, AnswerSettings(max_tokens=20))
    return answers


def commit(answers: OpenAnswers, tokens: list[int]) -> None:
    conversation = answers.conversation
    held = len(conversation.tokens)
    progress = conversation.commit_verdict(
        Verdict(conversation.ask_id, held, conversation.hashes.short_at(held), tokens, Finish.UNFINISHED)
    )
    answers.on_committed(progress)


def refuse(_: Sequence[int]) -> Sequence[int]:
    raise DataError("This is no text.", hint="")


def test_a_question_that_cannot_be_made_leaves_everything_as_it_was() -> None:
    answers = OpenAnswers(Conversation(50), RULE)
    with raises(DataError, snapshot("This is no text.")):
        answers.begin(refuse, AnswerSettings())
    assert (answers.current, answers.front, answers.conversation.tokens) == (None, None, [])
    assert answers.begin(lambda _: PROMPT, AnswerSettings(max_tokens=20)) is not None
    commit(answers, [4])
    assert answers.conversation.tokens == [*PROMPT, 4]
    first = answers.front
    assert first is not None
    answers.write(first, [6])
    answers.stop()
    with raises(DataError, snapshot("This is no text.")):
        answers.begin(refuse, AnswerSettings())
    assert (answers.current, answers.front, answers.unsettled) == (None, first, 1)


def test_a_question_that_cannot_be_made_after_what_the_server_has_decided_holds_up_no_other() -> None:
    answers = asked()
    for turn in (lambda before: [7] if before[-1] == 6 else refuse(before), lambda _: [8]):
        job = answers.current or answers.front
        assert job is not None
        answers.write(job, [6])
        answers.stop()
        answers.begin(turn, AnswerSettings(max_tokens=20))
    commit(answers, [4])
    assert answers.on_finished(Finish.MAX_TOKENS) is not None
    assert isinstance(answers.events[-1], events.Refused)
    assert answers.front is answers.current
    assert answers.conversation.tokens == [*PROMPT, 4, 8]


def test_a_question_that_is_stopped_without_an_answer_was_not_asked() -> None:
    answers = asked()
    answers.stop()
    assert (list(answers.events), answers.conversation.tokens) == ([events.Ended(Finish.CANCELLED)], [])


def test_what_a_correction_has_replaced_can_be_had_back_until_the_next_question() -> None:
    answers = asked()
    commit(answers, [4, 5])
    job = answers.front
    assert job is not None
    answers.write(job, range(6, 6 + WORTH_KEEPING + 1))
    commit(answers, [6, 5])  # the first of them is right
    answers.on_finished(Finish.MAX_TOKENS)
    withdrawn = answers.withdrawn
    assert withdrawn is not None
    assert withdrawn.tokens == (4, 5, *range(6, 6 + WORTH_KEEPING + 1))
    assert "".join(writer.letter for writer in withdrawn.writers) == "TTT" + "A" * WORTH_KEEPING
    assert (withdrawn.turns, withdrawn.finish) == (1, Finish.CANCELLED)
    answers.rewind(0)
    assert answers.withdrawn is None
    answers.events.clear()
    assert list(answers.keep(withdrawn, lambda _: PROMPT, AnswerSettings(max_tokens=20))) == [
        events.Committed(withdrawn.tokens, writers=withdrawn.writers),
        events.Ended(Finish.CANCELLED),
    ]
    assert answers.conversation.tokens == [*PROMPT, *withdrawn.tokens]


def test_what_was_decided_of_answers_that_are_rewound_is_not_told() -> None:
    answers = asked()
    with says(ProtocolError, "Expected the answer under way to end first, got a wish to rewind."):
        answers.rewind(0)
    for question in (10, 20):
        job = answers.current
        assert job is not None
        answers.write(job, [7])
        answers.stop()
        answers.begin(lambda _, question=question: [question], AnswerSettings(max_tokens=20))  # type: ignore[misc]
    answers.stop()
    answers.events.clear()
    for token in (7, 8):
        commit(answers, [token])
        answers.on_finished(Finish.MAX_TOKENS)
    settled = [event for event in answers.events if isinstance(event, events.Settled)]
    assert len(settled) == 2
    assert answers.rewind(1)
    committed = events.Committed((7,), 1, writers=(events.Provenance.TARGET,))
    assert list(answers.events) == [events.Earlier(committed), settled[0]]
    assert answers.conversation.tokens == [*PROMPT, 7]


VOCAB, END, FIRST_TURN = 1000, 10, 100  # every question is one token from FIRST_TURN on


def target_token(text: Sequence[int]) -> int:
    """The toy target: what follows depends on the text before it."""
    return (7 * sum(text[-3:]) + len(text)) % (END + 1)


def target_text(text: Sequence[int], count: int) -> list[int]:
    written: list[int] = []
    while len(written) < count and END not in written:
        written.append(target_token([*text, *written]))
    return written


class Shown:
    def __init__(self, number: int) -> None:
        self.number = number
        self.committed: list[int] = []
        self.provisional: list[int] = []
        self.ended: tuple[list[int], list[int]] = [], []  # committed and provisional tokens, without the server
        self.written = self.kept = 0  # provisional tokens in all, and those of them that were confirmed

    def apply(self, event: events.Event) -> None:
        if isinstance(event, events.Committed):
            assert list(event.tokens[: event.confirmed]) == self.provisional[: event.confirmed]
            del self.provisional[: event.confirmed]
            assert event.confirmed == len(event.tokens) or not self.provisional
            self.committed += event.tokens
            self.kept += event.confirmed
        elif isinstance(event, events.Provisional):
            self.provisional += event.tokens
            self.written += len(event.tokens)
        elif isinstance(event, events.Corrected):
            assert event.dropped == len(self.provisional) > 0
            self.provisional.clear()


class AnyOrder(RuleBasedStateMachine):
    """A user who asks and stops, a server that decides and goes, a device that guesses right and wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conversation = Conversation(VOCAB)
        self.queue = OpenAnswers(self.conversation, FinishRule(AnswerSettings(), 0, 10_000, frozenset({END}), str))
        self.asked = 0
        self.reading: Shown | None = None  # what the user waits for
        self.earlier: list[Shown] = []  # ended without the server, oldest first

    # ------------------------------------------------------------ the reader

    def read(self, answer: Sequence[int] = ()) -> None:
        """Takes in all events; `answer`: that of the front question, if the server has just decided something."""
        for event in self.queue.events:
            if isinstance(event, events.Earlier):
                self.earlier[0].apply(event.event)
            elif isinstance(event, events.Settled):
                settled = self.earlier.pop(0)
                before, shown = settled.ended
                assert before + list(event.tokens) == settled.committed == list(answer)
                assert not settled.provisional
                assert event.changed == (list(event.tokens) != shown)
                assert (event.written, event.kept) == (settled.written, settled.kept)
            elif isinstance(event, events.Refused):
                self.earlier.pop(0)
            else:
                assert self.reading is not None
                self.reading.apply(event)
            if isinstance(event, events.Ended):
                assert self.reading is not None
                assert event.provisional or not self.reading.provisional
                if event.provisional:
                    assert self.reading.provisional
                    self.reading.ended = [*self.reading.committed], [*self.reading.provisional]
                    self.earlier.append(self.reading)
                self.reading = None
        self.queue.events.clear()

    # ------------------------------------------------------------ the user

    def begin(self, turn: list[int], max_tokens: int) -> Ask | None:
        return self.queue.begin(lambda _: turn, AnswerSettings(max_tokens=max_tokens))

    def leave(self) -> None:
        self.queue.forget_current()

    def keep_answers(self, answers: int) -> bool:
        return self.queue.rewind(answers)

    @precondition(lambda self: self.reading is None)
    @rule(max_tokens=st.integers(1, 6))
    def ask(self, max_tokens: int) -> None:
        self.reading, turn = Shown(self.asked), [FIRST_TURN + self.asked]
        self.asked += 1
        nothing_open = self.queue.front is None
        message = self.begin(turn, max_tokens)
        assert (message is not None) == nothing_open

    @precondition(lambda self: self.reading is not None)
    @rule(leaves=st.booleans())
    def stop(self, leaves: bool) -> None:
        if leaves:
            self.leave()
            self.reading = None
        else:
            self.queue.stop()
            self.read()

    @precondition(lambda self: self.reading is None)
    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        asked = [token - FIRST_TURN for token in self.conversation.tokens if token >= FIRST_TURN]
        asked += [shown.number for shown in self.earlier[1:]]
        kept = asked[: data.draw(st.integers(0, len(asked)))]
        before = list(self.conversation.tokens)
        ends = [*(before.index(FIRST_TURN + number) for number in asked if FIRST_TURN + number in before), len(before)]
        length = ends[min(len(kept), len(ends) - 1)]
        assert (self.keep_answers(len(kept)), self.conversation.tokens) == (length < len(before), before[:length])
        self.earlier = [shown for shown in self.earlier if shown.number in kept]

    # ------------------------------------------------------------ the server

    @precondition(lambda self: self.queue.front is not None)
    @rule(count=st.integers(1, 3))
    def verdict(self, count: int) -> None:
        conversation = self.conversation
        held = len(conversation.tokens)
        tokens = target_text(conversation.tokens, count)
        finish = Finish.END_OF_TEXT if END in tokens else Finish.UNFINISHED
        progress = conversation.commit_verdict(
            Verdict(conversation.ask_id, held, conversation.hashes.short_at(held), tokens, finish)
        )
        self.queue.on_committed(progress)
        answer = list(conversation.answer)
        if progress.finish is not Finish.UNFINISHED:
            self.queue.on_finished(progress.finish)
        self.read(answer)

    @precondition(lambda self: self.queue.front not in (None, self.queue.current))
    @rule()
    def refusal(self) -> None:
        self.queue.on_refused(ContextLengthError("Too long."))
        self.read()

    # ------------------------------------------------------------ the device

    @precondition(lambda self: self.queue.current is not None and not self.queue.current.has_ended)
    @rule(count=st.integers(1, 6), wrong=st.none() | st.integers(0, 3))
    def write(self, count: int, wrong: int | None) -> None:
        job = self.queue.current
        assert job is not None
        tokens = target_text([*self.queue.text_before(job), *job.written], count)
        if wrong is not None and wrong < len(tokens):
            tokens[wrong] = (tokens[wrong] + 1) % (END + 1)
        self.queue.write(job, tokens)
        self.read()

    @precondition(
        lambda self: self.queue.current and self.queue.current is self.queue.front and not self.queue.current.has_ended
    )
    @rule(count=st.integers(1, 4), of_other_text=st.booleans())
    def lose_the_link_with_a_draft_in_flight(self, count: int, of_other_text: bool) -> None:
        job = self.queue.current
        assert job is not None
        before = list(job.written)
        ahead = [*before, *target_text([*self.conversation.tokens, *before], count)]
        if of_other_text:
            ahead[0] = (ahead[0] + 1) % (END + 1)
        self.conversation.in_flight.propose(DraftTree.chain(ahead))
        self.conversation.in_flight.drop()
        assert (job.written, len(self.conversation.in_flight.tree)) == (before, 0)
        self.read()

    @precondition(lambda self: self.queue.current is not None and self.queue.current.has_ended)
    @rule()
    def end_standalone(self) -> None:
        self.queue.end_standalone()
        self.read()

    # ------------------------------------------------------------ what holds always

    @invariant()
    def the_reader_sees_what_is_held(self) -> None:
        job = self.queue.current
        assert (job is None) == (self.reading is None)
        if job is not None and self.reading is not None:
            assert self.reading.provisional == job.written
            assert self.reading.committed == (list(self.conversation.answer) if job is self.queue.front else [])
            figures = self.queue.figures
            assert figures.tokens == len(self.reading.committed)
            assert (figures.provisional, figures.kept) == (self.reading.written, self.reading.kept)
            assert figures.undecided == len(self.reading.provisional)

    @invariant()
    def an_answer_continues_all_that_is_shown_before_it(self) -> None:
        job, text = self.queue.current, list(self.conversation.tokens)
        for place, shown in enumerate(self.earlier):
            if place == 0:  # of this one the server may have decided a part already
                answer, written = list(self.conversation.answer), shown.committed + shown.provisional
                text += written[len(answer) :] if written[: len(answer)] == answer else []
            else:
                text += [FIRST_TURN + shown.number, *shown.provisional]
        if job is not None and self.reading is not None:
            turn = [FIRST_TURN + self.reading.number] if self.earlier else []
            assert self.queue.text_before(job) == text + turn

    @invariant()
    def no_question_is_lost_and_none_overtakes_another(self) -> None:
        assert self.queue.unsettled == len(self.earlier)
        turns = [token for token in self.conversation.tokens if token >= FIRST_TURN]
        assert turns == sorted(set(turns))
        open_questions = [shown.number for shown in (*self.earlier, *([self.reading] if self.reading else []))]
        if open_questions:
            assert turns[-1] == FIRST_TURN + open_questions[0]  # the conversation is about the oldest one
            assert self.conversation.phase is Phase.ANSWERING
        else:
            assert self.conversation.phase is Phase.IDLE


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=examples(200), stateful_step_count=40)

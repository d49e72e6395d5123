from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pytest
from moa_server.session.session import Backlog, Session, SessionLimits
from moa_server.session.verification import StepPlan, Verification
from moa_shared.errors import ContextLengthError, ProtocolError, TokenRangeError
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.tree import DraftTree

from tests.support.counted import TouchedTokens
from tests.unit.moa_server.session.markov import steps

VOCAB = 5
END_OF_TEXT = 4
CONTEXT = 60
LIMITS = SessionLimits(CONTEXT, VOCAB, draft_nodes=6, prefill_chunk=4, run_ahead_tokens=5)
PLAIN = AnswerSettings(max_tokens=12)


class CountedList(list[Any]):
    """Counts the elements that slices, iteration and comparison read."""

    read = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.read += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Iterator[Any]:
        self.read += len(self)
        return super().__iter__()

    def __eq__(self, other: object) -> bool:
        self.read += len(self)
        return super().__eq__(other)


def decode(tokens: Sequence[int]) -> str:
    return "".join("abcde"[token] for token in tokens)


def new_session(*, run_ahead: bool = False, limits: SessionLimits = LIMITS) -> Session:
    return Session(limits, end_of_text=frozenset({END_OF_TEXT}), decode=decode, run_ahead=run_ahead)


def asked(prompt: Sequence[int], how: AnswerSettings = PLAIN, *, run_ahead: bool = False) -> Session:
    session = new_session(run_ahead=run_ahead)
    session.on_ask(Ask(1, 0, 0, tuple(prompt), how, len(prompt)))
    return session


def run(session: Session, most: int = 1000) -> list[int]:
    """Steps a session until it waits, or so often; the tokens chosen, whose target is 1 after 2, 2 after 1, else 3."""
    done = islice(
        steps(session, lambda plan: plan.verify([{1: 2, 2: 1}.get(plan.feed[-1], 3)]), acknowledges=False), most
    )
    return [token for _, verification in done for token in verification.taken]


def test_without_run_ahead_it_waits_for_a_draft() -> None:
    session = asked([1, 2])
    assert run(session) == [1]
    session.on_draft(Draft(0, 3, session.hashes.short_at(3), 0, ()))
    assert run(session) == [2]


def test_run_ahead_is_bounded_by_what_the_client_holds() -> None:
    session = asked([1, 2], run_ahead=True)
    assert len(run(session)) == LIMITS.run_ahead_tokens
    session.on_ack(4)
    assert len(run(session)) == 2
    with pytest.raises(ProtocolError):
        session.on_ack(10)


def test_work_that_was_overtaken_changes_nothing() -> None:
    session = asked([1, 2])
    plan = session.plan_step()
    assert plan is not None
    assert session.on_stop()
    assert not session.on_verified(plan, plan.verify([1]))
    assert session.tokens == [1, 2]
    assert not session.on_stop()
    session = asked([1, 2, 3] * 3)
    plan = session.plan_step()
    assert plan is not None
    session.on_open([])
    assert not session.on_prefilled(plan)
    assert session.cached == 0


class Colliding(PrefixHashes):
    """Hashes that are all the same, as an attacker may find texts whose are."""

    def at(self, length: int) -> int:
        super().at(length)
        return 0


def test_what_was_read_of_another_text_with_the_same_hash_is_not_kept() -> None:
    session = new_session()
    session.hashes = Colliding()
    session.on_ask(Ask(1, 0, 0, (1, 2, 3, 0, 1, 2), PLAIN, 6))
    begun = session.plan_step()  # reads the first four
    assert begun is not None
    shared = session.tokens
    session.on_ask(Ask(2, 0, 0, (3, 3, 3, 3, 1, 2), PLAIN, 6))
    assert not session.on_prefilled(begun)
    assert session.cached == 0
    assert not session.on_adopted(4, shared, session.cache_version)
    assert session.cached == 0
    session.on_ask(Ask(3, 0, 0, (1, 2, 3, 0, 1, 2), PLAIN, 6))
    assert not session.on_prefilled(begun)
    assert session.cached == 4  # the same tokens again


def test_a_resume_of_an_answer_that_ended_meanwhile_gets_all_of_it_and_with_other_settings_none() -> None:
    prompt, how = [3, 1], AnswerSettings(max_tokens=4)
    session = asked(prompt, how, run_ahead=True)
    expected = tuple(run(session))
    assert session.on_open(prompt, asks=True) == 2
    ask = Ask(1, 2, PrefixHashes(prompt).at(2), (), how, 2)
    assert session.on_ask(ask) == Backlog(2, expected, Finish.MAX_TOKENS)
    assert run(session) == []
    session.on_open(prompt, asks=True)
    assert session.on_ask(replace(ask, settings=AnswerSettings(max_tokens=5))).tokens == ()
    assert session.tokens == prompt


@pytest.mark.parametrize(
    ("answer", "how", "finish"),
    [
        ([1, 2, 1], AnswerSettings(max_tokens=3), Finish.MAX_TOKENS),
        ([1, 2, 1], AnswerSettings(max_tokens=2), Finish.MAX_TOKENS),
        ([1, END_OF_TEXT], PLAIN, Finish.END_OF_TEXT),
        ([1, 2], AnswerSettings(stop=(decode([1, 2]),)), Finish.STOP),
        ([1] * (CONTEXT - 2), AnswerSettings(ignore_end_of_text=True), Finish.CONTEXT),
        ([1, 2] * 256, AnswerSettings(loop_guard=True), Finish.LOOP),
    ],
)
def test_an_ask_whose_answer_has_ended_chooses_nothing(answer: list[int], how: AnswerSettings, finish: Finish) -> None:
    """Resumed on a server that knows nothing of it: not one more token."""
    limits = LIMITS if len(answer) < CONTEXT else SessionLimits(1000, VOCAB)
    session, held = new_session(run_ahead=True, limits=limits), [3, 1, *answer]
    session.on_open(held, asks=True)
    backlog = session.on_ask(Ask(7, len(held), PrefixHashes(held).at(len(held)), (), how, 2))
    assert backlog == Backlog(len(held), (), finish)
    assert run(session) == []
    assert session.ask_id == 7


def test_a_repeated_ask_says_nothing_again() -> None:
    session = asked([3, 1], run_ahead=True)
    run(session, 1)
    assert not session.on_ask(Ask(1, 0, 0, (3, 1), PLAIN, 2)).is_news
    assert session.on_ask(Ask(2, 0, 0, (3, 1), PLAIN, 2)) == Backlog(2)  # another question begins again
    assert session.tokens == [3, 1]


def test_a_new_stream_counts_its_epochs_from_the_start() -> None:
    session = asked([1, 2])
    run(session)
    tokens = list(session.tokens)
    base, prefix = len(tokens), PrefixHashes(tokens).short_at(len(tokens))
    session.on_draft(Draft(9, base, prefix, 0, (1,), ()))
    session.on_open(tokens)
    session.on_ask(Ask(1, base, PrefixHashes(tokens).at(base), (), PLAIN, 2))
    session.on_draft(Draft(0, base, prefix, 0, (2,), ()))
    assert session.pending.usable(session.tokens) == DraftTree.chain([2])


@pytest.mark.parametrize(
    ("tokens", "ask", "error"),
    [
        ([1, 2], Ask(2, 3, PrefixHashes([1, 2, 3]).at(3), (1,), PLAIN, 4), ProtocolError),  # beyond what it opens with
        ([1, 2], Ask(2, 2, 1, (1,), PLAIN, 3), ProtocolError),  # another conversation
        ([1, 2], Ask(2, 0, 0, (), PLAIN, 0), ProtocolError),  # nothing at all
        ([1, 2], Ask(2, 0, 0, (1, 2), PLAIN, 3), ProtocolError),  # an answer that starts later
        ([2], Ask(2, 0, 0, (VOCAB,), PLAIN, 1), TokenRangeError),
        ([-1], Ask(2, 0, 0, (1,), PLAIN, 1), TokenRangeError),
        ([2], Ask(2, 0, 0, (1,) * CONTEXT, PLAIN, CONTEXT), ContextLengthError),  # with no room for an answer
        ([1] * (CONTEXT + 1), Ask(2, 0, 0, (1,), PLAIN, 1), ContextLengthError),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused_before_the_session_changes(
    tokens: list[int], ask: Ask, error: type[Exception]
) -> None:
    session = asked([1, 2, 3])
    run(session)
    before = (list(session.tokens), session.phase, session.version, session.cached)
    with pytest.raises(error):
        session.check_open(tokens, ask)
    assert (list(session.tokens), session.phase, session.version, session.cached) == before

    def open_and_ask() -> None:
        session.on_open(tokens)
        session.on_ask(ask)

    with pytest.raises(error):
        open_and_ask()


@pytest.mark.parametrize("before", [1, 1000, 20_000])
def test_a_plain_step_reads_no_more_of_a_long_answer(before: int) -> None:
    session = Session(SessionLimits(100_000, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1], AnswerSettings(stop=("x",)), 0))
    for _ in islice(steps(session, lambda plan: plan.verify([7])), before - 1):
        """The answer grows."""
    session.tokens = CountedList(session.tokens)
    plan = session.plan_step()
    assert plan is not None
    assert session.on_verified(plan, plan.verify([7]))
    assert session.tokens.read <= 300  # the window of stop strings and the newest token


def test_slices_of_a_prompt_read_it_once() -> None:
    session = new_session(run_ahead=True, limits=SessionLimits(100_000, 50, prefill_chunk=100))
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1] * 10_000, AnswerSettings(), 0))
    session.tokens = CountedList(session.tokens)
    while (plan := session.plan_step()) is not None and not plan.chooses:
        assert len(plan.feed) == 100
        assert session.on_prefilled(plan)
    assert session.tokens.read <= 10_000 + 100


def test_a_long_answer_ends_where_it_should() -> None:
    for wanted, finish in (
        (AnswerSettings(max_tokens=600), Finish.MAX_TOKENS),
        (AnswerSettings(max_tokens=900, stop=("z",)), Finish.STOP),
        (AnswerSettings(max_tokens=900, loop_guard=True), Finish.LOOP),
    ):
        session = Session(SessionLimits(2000, 50), end_of_text=frozenset(), decode=decode_last, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), [1], wanted, 0))
        choose = partial(_late_stop, session, stops=bool(wanted.stop))
        *_, (_, verification) = steps(session, choose)
        assert (len(session.tokens), verification.finish) == (513 if finish is Finish.LOOP else 601, finish)


def _late_stop(session: Session, plan: StepPlan, *, stops: bool) -> Verification:
    return plan.verify([26 if len(session.tokens) == 600 and stops else 7])


def decode_last(tokens: Sequence[int]) -> str:
    return "".join(chr(96 + token) for token in tokens)


def test_a_draft_without_an_answer_is_not_looked_at_token_by_token() -> None:
    server = new_session()
    tokens = TouchedTokens(100_000)
    server.on_draft(Draft(epoch=0, base=0, prefix_hash=0, first_node=0, tokens=tokens, parents=TouchedTokens(100_000)))
    assert server.pending.take_stale() == 100_000
    assert tokens.touched == 0


def chunks(session: Session) -> list[tuple[int, bool]]:
    """Where the chunks of a prompt end, and whether states are kept there."""
    found = []
    while (plan := session.plan_step()) is not None and not plan.chooses:
        assert session.on_prefilled(plan)
        found.append((plan.fed, plan.leaves_checkpoint))
    return found


def test_chunks_of_a_prompt_end_where_states_are_kept() -> None:
    limits = SessionLimits(10_000, VOCAB, prefill_chunk=300, checkpoint_tokens=64)
    session, text = new_session(limits=limits), [place % 4 for place in range(5000)]
    session.on_ask(Ask(1, 0, 0, tuple(text), PLAIN, 5000))
    ends = chunks(session)
    assert [end for end, is_kept in ends if is_kept] == [2048, 4096, 4992]  # the last page before the answer
    assert len(ends) == -(-2048 // 300) + -(-2048 // 300) + -(-896 // 300)
    other = [*text[:4500], *[place % 3 for place in range(300)]]
    assert session.on_open(other) == 4096
    session.on_ask(Ask(1, 4800, PrefixHashes(other).at(4800), (), PLAIN, 4800))
    # Where it departed from the text before, the next one may depart too; the edge of a page is before the newest token.
    assert [end for end, is_kept in chunks(session) if is_kept] == [4480, 4736]
    assert session.on_open(other[:4800]) == 4736
    assert session.on_open(other[:4736]) == 4736
    assert session.on_open(other[:4735]) == 4480


@pytest.mark.parametrize("kept", [6, 9, 10, 12])
def test_a_text_that_is_cut_is_read_again_from_where_there_are_states(kept: int) -> None:
    """In an answer there are none but after the newest token that was fed, and a forward under way moves them on."""
    session = new_session(limits=replace(LIMITS, checkpoint_tokens=4), run_ahead=True)
    session.on_ask(Ask(1, 0, 0, (1, 2) * 4 + (1,), PLAIN, 9))
    assert chunks(session) == [(4, False), (8, True)]
    assert len(run(session, 3)) == 3
    text, plan = list(session.tokens), session.plan_step()
    assert plan is not None
    assert (len(text), session.cached) == (12, 11)
    cached = session.on_open(text[:kept], asks=False)
    assert cached == {6: 0, 9: 8, 10: 8, 12: 11}[kept]
    assert not session.on_verified(plan, plan.verify([0]))
    assert session.cached == {6: 0, 9: 8, 10: 8, 12: 8}[kept]  # it has moved the states beyond the newest token

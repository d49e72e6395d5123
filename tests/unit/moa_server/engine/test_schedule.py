"""What the next forward holds: every answer that waits, the draft nodes that are worth their time, some of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, count
from types import SimpleNamespace
from typing import cast
from unittest.mock import create_autospec

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import DraftRecord, SessionDrafting
from moa_server.drafting.forward_cost import RowShares
from moa_server.engine.forward_planner import NO_CODING, ForwardPlanner, SlowForms, newest_coding
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.schedule import (
    LEAST_SLICE,
    LONGEST_TURN,
    MOST_ROWS,
    TURN,
    FairQueue,
    Rows,
    Schedule,
    StepCandidate,
)
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import SessionTensors
from moa_server.session.memory_feed import MemoryFeed
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Plane
from moa_shared.tree import ROOT, DraftTree

NUMBERS = count()
LONG = 1000
CHAIN = DraftTree.chain([1, 2, 3])


def waiting(
    prompt: Sequence[int],
    owner: str = "",
    limits: SessionLimits = SessionLimits(10_000, 50),  # noqa: B008 (frozen)
) -> LiveSession:
    session = Session(limits, end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), prompt, AnswerSettings(), 0))
    tensors, caller = SessionTensors(None, {}), Caller(owner=owner)  # type: ignore[arg-type]
    return LiveSession(next(NUMBERS).to_bytes(4, "big"), session, tensors, caller=caller)


def schedule_of(live_sessions: Sequence[LiveSession]) -> Schedule[LiveSession]:
    schedule: Schedule[LiveSession] = Schedule(owner_of=lambda live: live.caller.owner)
    for live in live_sessions:
        schedule.add(live)
    return schedule


def measured(plain_ms: float, row_ms: float) -> Schedule[LiveSession]:
    """A schedule that has seen forwards of this cost."""
    schedule: Schedule[LiveSession] = Schedule()
    for _ in range(60):
        for nodes in (0, 1, 4, 16, 40):
            schedule.on_forward(Rows(1, 1, nodes), plain_ms + nodes * row_ms, 1)
    return schedule


# ---------------------------------------------------------------- who


def test_where_not_all_answers_find_room_every_owner_has_some() -> None:
    crowd, few = [waiting([1], "crowd") for _ in range(2 * MOST_ROWS)], [waiting([1], "few") for _ in range(3)]
    schedule = schedule_of([*crowd, *few])
    assert set(few) <= set(schedule.take_answers())
    for live in few:
        schedule.add(live)
    assert set(few) <= set(schedule.take_answers())


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_owners_take_turns_and_each_in_its_own_order(owners: list[str]) -> None:
    queue = FairQueue[tuple[str, int]](lambda each: each[0])
    for number, owner in enumerate(owners):
        queue.add((owner, number))
    taken = []
    while queue:
        taken.append(queue.take())
    for owner in "abc":
        assert [each for each in taken if each[0] == owner] == [
            (owner, number) for number, each in enumerate(owners) if each == owner
        ]
    rounds = [[owner for owner, _ in taken[: 3 * turn]] for turn in range(1, 1 + min(map(owners.count, "abc")))]
    assert all(len({done.count(owner) for owner in "abc"}) == 1 for done in rounds)


def read(schedule: Schedule[LiveSession], most: int) -> LiveSession:
    """A forward reads at most so many tokens of a prompt; gives whose it was."""
    live = schedule.take_prompt()
    assert live is not None
    tokens = min(most, live.session.unread)
    schedule.on_read(live, tokens)
    live.session.cached += tokens
    if live.session.reads:
        schedule.add(live)
    return live


def test_a_turn_ends_where_the_prompt_would_go_on_beyond_the_longest() -> None:
    schedule = schedule_of([first := waiting([1] * (LONGEST_TURN + 1)), second := waiting([1] * LONG)])
    turns = [read(schedule, LEAST_SLICE) for _ in range(2 * TURN // LEAST_SLICE)]
    assert turns == [first] * (TURN // LEAST_SLICE) + [second] * (TURN // LEAST_SLICE)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(51, 600)), min_size=1, max_size=8), st.integers(1, 256))
def test_no_owner_is_read_for_longer_than_a_turn_while_another_one_waits(
    prompts: list[tuple[str, int]], most: int
) -> None:
    lives = [waiting([1] * tokens, owner) for owner, tokens in prompts]
    schedule = schedule_of(lives)
    newest, turn = "", 0
    while any(live.session.reads for live in lives):
        left = sum(live.session.unread for live in lives)
        owner = read(schedule, most).caller.owner
        turn = (turn if owner == newest else 0) + left - sum(live.session.unread for live in lives)
        newest = owner
        if not any(live.session.reads and live.caller.owner != owner for live in lives):
            turn = 0
        assert turn <= max(LONGEST_TURN, TURN - 1 + most)
    assert schedule.take_prompt() is None


# ---------------------------------------------------------------- which nodes


def parents(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(ROOT, node - 1) for node in range(size)))


@given(
    st.integers(0, 5).flatmap(parents),
    st.integers(0, 4).flatmap(parents),
    st.floats(10.0, 100.0),
    st.floats(0.0, 30.0),
    st.lists(st.booleans(), min_size=1, max_size=20),
)
def test_no_other_nodes_of_all_sessions_are_worth_more(
    one: tuple[int, ...], other: tuple[int, ...], plain_ms: float, row_ms: float, right: list[bool]
) -> None:
    schedule, record = measured(plain_ms, row_ms), DraftRecord()
    for hit in right:
        record.learn_taken(CHAIN, [1 if hit else 9])
    trees = [DraftTree(tuple(range(len(shape))), shape) for shape in (one, other)]
    survival = [record.survival(tree) for tree in trees]
    chosen = schedule.choose_nodes([StepCandidate(1, *each) for each in zip(trees, survival, strict=True)])
    for tree, part in zip(trees, chosen, strict=True):  # the tokens are the nodes' numbers
        assert all(tree.parents[node] == ROOT or tree.parents[node] in part.tokens for node in part.tokens)

    def worth(*picked: Sequence[int]) -> float:
        tokens = sum(chances[node] for chances, nodes in zip(survival, picked, strict=True) for node in nodes)
        return tokens - schedule.draft_price(2) * schedule.cost.ms(1 + sum(map(len, picked)))

    def subtrees(tree: DraftTree) -> list[tuple[int, ...]]:
        return [
            nodes
            for size in range(len(tree) + 1)
            for nodes in combinations(range(len(tree)), size)
            if all(tree.parents[node] == ROOT or tree.parents[node] in nodes for node in nodes)
        ]

    best = max(worth(a, b) for a in subtrees(trees[0]) for b in subtrees(trees[1]))
    assert worth(*(part.tokens for part in chosen)) == pytest.approx(best)


def test_nodes_of_the_better_drafter_go_first_and_all_where_they_must_or_cost_nothing() -> None:
    candidates = [StepCandidate(1, CHAIN, (0.05, 0.01, 0.01)), StepCandidate(1, CHAIN, (0.9, 0.8, 0.7))]
    given = StepCandidate(1, CHAIN, None)
    schedule = measured(10.0, 1.0)
    assert [len(tree) for tree in schedule.choose_nodes([*candidates, given])] == [0, 3, 3]
    schedule = Schedule(plain_ms=10.0, verifies_all=True)
    assert [len(tree) for tree in schedule.choose_nodes(candidates)] == [3, 3]
    assert schedule.least_chance(2) == 0.0


# ---------------------------------------------------------------- how much of a prompt


def test_who_waits_for_a_prompt_to_be_read_takes_the_time_for_drafts_too() -> None:
    schedule = measured(plain_ms=10.0, row_ms=5.0)
    schedule.add(waiting([1]))
    assert schedule.has_time()
    for _ in range(15):
        schedule.add(waiting([1] * 30))
    assert not schedule.has_time()


def test_a_forward_with_answers_reads_no_more_than_doubles_its_time() -> None:
    schedule = measured(50.0, 0.5)
    schedule.on_forward(Rows(0, 0, 0, read=100), 100.0, 0)  # 1 ms a token
    assert schedule.read_tokens(1) == pytest.approx(50, abs=1)
    assert schedule.read_tokens(41) == pytest.approx(70, abs=1)
    schedule.on_forward(Rows(0, 0, 0, read=10), 1e6, 0)
    assert schedule.read_tokens(1) == LEAST_SLICE  # a little, however long it takes


def test_what_reading_takes_is_measured_beside_answers_too() -> None:
    schedule = measured(50.0, 0.0)
    for _ in range(50):
        schedule.on_forward(Rows(1, 1, 0, read=20), 70.0, 1)
    assert schedule.read_tokens(1) == pytest.approx(50, abs=2)
    assert schedule.answers_ms(Rows(1, 1, 0, read=20), 70.0) == pytest.approx(50, abs=1)


def test_the_time_to_read_a_token_is_that_of_a_row_until_it_is_measured() -> None:
    assert Schedule[LiveSession]().read_ms == 0
    schedule = Schedule[LiveSession](RowShares.straight(0.05), plain_ms=10.0)
    assert schedule.read_ms == pytest.approx(0.5)
    schedule.on_forward(Rows(0, 0, 0, read=100), 80.0, 0)
    assert schedule.read_ms == pytest.approx(0.8)


CHUNK = 4


class Bench:
    """A planner over a real schedule, and the sessions that it has lost."""

    def __init__(self) -> None:
        self.schedule: Schedule[LiveSession] = Schedule(most_read=CHUNK)
        self.pages = create_autospec(SharedPages, instance=True)
        self.pages.adopt.return_value = False
        self.jobs = create_autospec(SessionJobs, instance=True)
        slow_forms = create_autospec(SlowForms, instance=True)
        slow_forms.defers.return_value = False
        self.planner = ForwardPlanner(self.schedule, self.pages, self.jobs, slow_forms)

    def ask(self, prompt: Sequence[int] = (1,), *, draft: Sequence[int] = ()) -> LiveSession:
        """A session that waits for its turn."""
        live = waiting(prompt, limits=SessionLimits(100, 50, draft_nodes=8, prefill_chunk=CHUNK))
        if draft:
            live.session.on_draft(Draft(1, len(prompt), live.session.hashes.short_at(len(prompt)), 0, draft))
        live.stream = Attachment(create_autospec(Listener, instance=True))
        live.turn.queued = True
        self.schedule.add(live)
        return live

    def planned(self) -> list[LiveSession]:
        """Who has a part in the next forward."""
        return [part.live for part in self.planner.plan()]

    def make_nodes_expensive(self) -> None:
        for _ in range(60):
            self.schedule.on_forward(Rows(1, 1, 0), 1.0, 1)
            self.schedule.on_forward(Rows(1, 1, 1), 100.0, 1)

    def make_nodes_cheap(self) -> None:
        for _ in range(200):
            self.schedule.on_forward(Rows(1, 1, 0), 1.0, 1)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_closed_and_held_sessions_have_no_part(bench: Bench) -> None:
    closed, held, other = bench.ask(), bench.ask(), bench.ask()
    closed.close()
    held.turn.held = True
    assert bench.planned() == [other]


@pytest.mark.parametrize("prompt", [(1,), [1] * 10])
def test_a_session_that_is_given_pages_while_it_waits_has_no_part(bench: Bench, prompt: Sequence[int]) -> None:
    first, second = bench.ask(prompt), bench.ask(prompt)
    first.turn.stepping = True
    bench.pages.adopt.side_effect = lambda live: live is first
    assert bench.planned() == [second]


def test_a_defect_in_one_session_loses_that_one_alone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    defect = ZeroDivisionError()

    def fail(*_: object) -> None:
        raise defect

    bad, worse, good = bench.ask(), bench.ask(draft=[7]), bench.ask()
    monkeypatch.setattr(bad.session, "plan_step", fail)
    record = DraftRecord()
    monkeypatch.setattr(record, "survival", fail)
    worse.drafting.agree(by_server=False, drafts_forced=False, record=record)
    assert bench.planned() == [good]
    assert [call.args for call in bench.jobs.lose.call_args_list] == [(bad, defect), (worse, defect)]


def test_while_there_is_no_time_for_drafts_none_is_looked_at(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.make_nodes_expensive()
    live, record = bench.ask([1, 2, 3], draft=[7]), DraftRecord()
    live.drafting.agree(by_server=True, drafts_forced=False, record=record)
    live.session.cached = 2
    with monkeypatch.context() as patch:
        patch.setattr(record, "survival", None)
        [part] = bench.planner.plan()
    assert part.order is None
    assert not part.plan.tree
    live.session.on_verified(part.plan, part.plan.verify([9]))
    bench.make_nodes_cheap()
    live.turn.queued = True
    bench.schedule.add(live)
    [part] = bench.planner.plan()
    assert part.order is not None
    assert (part.order.base, list(part.order.tokens)) == (0, [1, 2, 3, 9])


def test_rows_that_cannot_be_sent_yet_are_not_coded() -> None:
    feed = MemoryFeed({Plane.REUSED_STATE: 512}, Codec.BF16, 1 << 20)
    live = cast("LiveSession", SimpleNamespace(stream=Attachment(feed=feed), drafting=SessionDrafting()))
    plan = cast("StepPlan", SimpleNamespace(cached=0))
    assert [rows.plane for rows in newest_coding(live, plan).at_once] == [Plane.REUSED_STATE]
    feed.rows_ready(1000)
    chunk = feed.take()
    assert chunk is not None
    assert newest_coding(live, plan) is NO_CODING
    feed.on_credit(chunk.nbytes)
    assert newest_coding(live, plan).feed is feed

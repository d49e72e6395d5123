"""Which sessions have a part in a forward, and with what."""

from collections.abc import Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest
from moa_server.drafting.draft_decision import DraftRecord, SessionDrafting
from moa_server.engine.forward_planner import NO_CODING, ForwardPlanner, SlowForms, newest_coding
from moa_server.engine.inference_thread import SessionJobs
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.shared_pages import SharedPages
from moa_server.engine.stepper import SessionTensors
from moa_server.session.memory_feed import MemoryFeed
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Plane

TOKENS = count(1)
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

    def ask(self, prompt: Sequence[int] = (1,), *, draft: Sequence[int] = (), attached: bool = True) -> LiveSession:
        """A session that waits for its turn."""
        limits = SessionLimits(100, 50, draft_nodes=8, prefill_chunk=CHUNK)
        session = Session(limits, end_of_text=frozenset(), decode=str, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), prompt, AnswerSettings(max_tokens=50), 0))
        if draft:
            session.on_draft(Draft(1, len(prompt), session.hashes.short_at(len(prompt)), 0, draft))
        stream = Attachment(create_autospec(Listener, instance=True) if attached else None)
        live = LiveSession(bytes([next(TOKENS)]), session, SessionTensors(cast(Any, None), {}), stream=stream)
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

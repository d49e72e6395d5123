from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import create_autospec

import pytest
from moa_server.access.limits import TokenMeter
from moa_server.drafting.forward_cost import DraftRecord
from moa_server.engine.engine import Engine
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.page_sharing import Adoption, FilledPages, PagesNotKept, PrefixSharing
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.stepper import CodedRows, MemorySource, NewestRows, Outcome, SessionTensors, Stepper, Work
from moa_server.session.memory_feed import Chunk, MemoryFeed
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.errors import InternalError, MoaError, RateLimitError, TokenRangeError
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import THIN, Ask, Draft, Plane, ThinMemory, Verdict
from moa_shared.tree import DraftTree

ANSWER = AnswerSettings(max_tokens=3)
LIMITS = SessionLimits(100, 50, prefill_chunk=4)


class FakeStepper(Stepper):
    """Chooses token 7 always; writes down what happens in which order, and fails where it is told to.

    Attributes:
        forwards: the first token and the number of tokens that each session fed.
    """

    def __init__(self) -> None:
        self.order: list[str] = []
        self.forwards: list[list[str]] = []
        self.fail_verify: dict[int, Exception] = {}
        self.fail_rows = False
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def verify_all(self, work: Sequence[Work]) -> list[Outcome]:
        self.entered.set()
        assert self.gate.wait(10)
        assert threading.current_thread().name == "inference"
        self.forwards.append([f"{each.plan.feed[0]}:{len(each.plan.feed)}" for each in work])
        self.order.append("step")
        return [self._choose(each.plan) for each in work]

    def _choose(self, plan: StepPlan) -> Outcome:
        if plan.feed[0] in self.fail_verify:
            return self.fail_verify[plan.feed[0]]
        return plan.verify([7] * (1 + len(plan.tree))) if plan.chooses else None

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
        if chunk.count == 13:
            raise RuntimeError("no room")
        self.order.append("coded")
        return CodedRows(chunk, b"coded")

    def code_newest(self, wanted: Sequence[tuple[SessionTensors, NewestRows]]) -> list[CodedRows | Exception]:
        return [self._code(rows) for _, rows in wanted]

    def _code(self, rows: NewestRows) -> CodedRows | Exception:
        self.order.append("rows" if rows.plane is Plane.MEMORY else "states")
        if self.fail_rows:
            return RuntimeError("no room")
        return CodedRows(Chunk(rows.plane, rows.start, 1, rows.codec, 5), b"newest")


class Ear(Listener):
    """Writes down what the engine says."""

    def __init__(self, stepper: FakeStepper) -> None:
        self.verdicts: list[Verdict] = []
        self.rows: list[CodedRows] = []
        self.error: MoaError | None = None
        self.spare_times = 0
        self.ended = asyncio.Event()
        self.got_rows = asyncio.Event()
        self._stepper = stepper

    def send_verdict(self, verdict: Verdict) -> None:
        self._stepper.order.append("verdict")
        self.verdicts.append(verdict)
        if verdict.finish is not Finish.UNFINISHED:
            self.ended.set()

    def on_rows(self, newest: CodedRows) -> None:
        self.rows.append(newest)
        self.got_rows.set()

    def on_spare_time(self) -> None:
        self.spare_times += 1

    def on_failure(self, error: MoaError) -> None:
        self.error = error
        self.ended.set()

    def on_displaced(self) -> None:
        raise AssertionError("there is room for all")

    def on_held(self, refusal: RateLimitError) -> None:
        raise AssertionError("there is no limit")


class Bench:
    def __init__(self, sharing: PrefixSharing | None = None) -> None:
        self.stepper = FakeStepper()
        self.lost: list[LiveSession] = []
        self.schedule: Schedule[LiveSession] = Schedule()
        self.engine = Engine(self.stepper, self.lost.append, schedule=self.schedule, sharing=sharing)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bench]:
        self.engine.start()
        yield self
        await self.engine.stop()

    def ask(
        self, prompt: Sequence[int], *, memory: bool = False, form: SlowForm | None = None
    ) -> tuple[LiveSession, Ear]:
        session = Session(LIMITS, end_of_text=frozenset(), decode=str, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), prompt, ANSWER, 0), cast(Any, form))
        ear = Ear(self.stepper)
        feed = MemoryFeed({Plane.MEMORY: 4}, Codec.BF16, 1 << 20) if memory else None
        live = LiveSession(bytes(prompt), session, SessionTensors(cast(Any, None), {}), stream=Attachment(ear, feed))
        self.engine.wake(live)
        return live, ear


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench().running() as bench:
        yield bench


class SlowForm:
    """A form that takes as long as the test says to find what may follow the first token, and no time afterwards."""

    def __init__(self) -> None:
        self.read = 0
        self.is_slow = False
        self.found = False
        self.gate = threading.Event()

    def needs_time(self, length: int) -> bool:
        return not self.found

    def advance(self, tokens: Sequence[int]) -> None:
        self.read += len(tokens)

    def allowed(self, tree: DraftTree) -> None:
        assert self.gate.wait(10)
        self.found = self.is_slow = True

    def take_ms(self) -> float:
        return 7.5


async def test_a_slow_form_delays_its_own_answer_only_and_is_paid_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moa_server.engine.engine.ms_since", lambda _: 1.0)
    form, meter = SlowForm(), create_autospec(TokenMeter, instance=True)
    meter.refusal.return_value = None
    slow, ear = bench.ask([1], form=form)
    slow.account.meter = meter
    slow.session.on_draft(Draft(1, 1, slow.session.hashes.short_at(1), 0, [7, 7]))
    for _ in range(3):  # one after the other: none waits for it
        await bench.ask([2])[1].ended.wait()
    assert not ear.verdicts
    form.gate.set()
    await ear.ended.wait()
    assert [verdict.drafted for verdict in ear.verdicts] == [0, 0, 0]
    assert [call.args for call in meter.write.call_args_list] == [(8,)] * 3


async def test_a_draft_that_arrives_during_a_step_counts_in_the_next(bench: Bench) -> None:
    bench.stepper.gate.clear()
    live, ear = bench.ask([1])
    session = live.session
    prefix = session.hashes.short_at(1)
    session.on_draft(Draft(1, 1, prefix, 0, [7, 7]))
    bench.engine.wake(live)  # it is stepping: nothing to do
    bench.stepper.gate.set()
    await ear.ended.wait()
    assert [len(verdict.tokens) for verdict in ear.verdicts] == [1, 2]
    assert (ear.verdicts[1].accepted, ear.verdicts[1].drafted) == (1, 1)


async def test_rows_wait_for_the_answer_s_first_token(bench: Bench) -> None:
    live, ear = bench.ask([1] * 6, memory=True)
    await ear.ended.wait()
    await ear.got_rows.wait()
    assert bench.stepper.order[:2] == ["step", "step"]  # no rows before the prompt is read
    assert ear.rows[0].payload == b"newest"
    assert live.stream.feed is not None
    chunk = live.stream.feed.take()
    assert chunk is not None
    assert (chunk.start + chunk.count, chunk.plane) == (live.session.cached, Plane.MEMORY)


async def test_states_leave_with_their_verdict_whatever_the_budget_says(bench: Bench) -> None:
    bench.stepper.gate.clear()
    live, ear = bench.ask([1] * 3)
    feed = MemoryFeed({Plane.MEMORY: 4, Plane.REUSED_STATE: 4}, Codec.BF16, 1 << 20)
    live.stream = Attachment(ear, feed)
    live.stream.budget.on_step(1.0, 1, 1.0)
    live.stream.budget.on_encoded(1e6)
    bench.stepper.gate.set()
    await ear.ended.wait()
    steps = bench.stepper.order
    assert steps[-3:] == ["step", "states", "verdict"]
    assert {rows.chunk.plane for rows in ear.rows[-2:]} == {Plane.REUSED_STATE}


@pytest.mark.parametrize("thin", [None, THIN])
async def test_memory_that_waits_for_time_is_told_when_there_is_some(bench: Bench, thin: ThinMemory | None) -> None:
    """Where it costs too much, and few rows where there is no time for drafts either."""
    for _ in range(60 if thin is not None else 0):
        bench.schedule.on_forward(Rows(1, 1, 0), 1.0, 1)
        bench.schedule.on_forward(Rows(1, 1, 1), 100.0, 1)
    bench.stepper.gate.clear()
    live, ear = bench.ask([1], memory=True)
    if thin is None:
        live.stream.budget.on_step(1.0, 1, 1.0)
        live.stream.budget.on_encoded(1e6)
    elif live.stream.feed is not None:
        live.stream.feed.want(thin)
    assert not bench.engine.may_code(live)
    assert ear.spare_times == 0
    bench.stepper.gate.set()
    await ear.ended.wait()
    await bench.engine.code(live, Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5))  # comes after the last step
    assert ear.spare_times == 1
    assert bench.engine.may_code(live)


async def test_rows_of_a_forward_that_was_overtaken_are_not_the_session_s(bench: Bench) -> None:
    bench.stepper.gate.clear()
    live, ear = bench.ask([1], memory=True)
    live.session.on_stop()
    bench.stepper.gate.set()
    await bench.engine.code(live, Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5))  # comes after the forward
    assert ear.verdicts == []
    assert ear.rows == []


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), TokenRangeError("token 99")])
async def test_an_error_ends_one_session(bench: Bench, error: Exception) -> None:
    bench.stepper.fail_verify[5] = error
    bad_session, bad = bench.ask([5])
    _, good = bench.ask([1])
    await bad.ended.wait()
    await good.ended.wait()
    assert bench.lost == [bad_session]
    assert bad_session.closed
    assert isinstance(bad.error, MoaError)
    if isinstance(error, MoaError):
        assert bad.error is error
    else:
        assert "out of memory" not in bad.error.message
    assert len(good.verdicts) == 3
    bench.engine.wake(bad_session)
    assert not bad_session.turn.queued


async def test_an_error_while_encoding_ends_one_session(bench: Bench) -> None:
    bench.stepper.fail_rows = True
    live, ear = bench.ask([1], memory=True)
    while ear.error is None:
        await ear.ended.wait()
        ear.ended.clear()
    assert isinstance(ear.error, InternalError)
    assert bench.lost == [live]


async def test_an_error_outside_torch_ends_one_session(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    bad_session, bad = bench.ask([5, 5, 5, 5, 5])
    monkeypatch.setattr(bad_session.session, "on_prefilled", fail)
    worse_session, worse = bench.ask([1])
    monkeypatch.setattr(worse_session.session, "plan_step", fail)
    worst_session, worst = bench.ask([1])
    record = DraftRecord()
    worst_session.drafting.agree(by_server=False, record=record)
    monkeypatch.setattr(record, "survival", fail)
    _, good = bench.ask([1])
    for ear in (bad, worse, worst, good):
        await ear.ended.wait()
    assert set(bench.lost) == {bad_session, worse_session, worst_session}
    assert len(good.verdicts) == 3


async def test_an_error_while_releasing_or_keeping_rows_ends_one_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(SessionTensors, "release", fail)
    monkeypatch.setattr(SessionTensors, "keep_rows", fail)
    released, _ = bench.ask([1])
    bench.engine.release(released)
    kept, _ = bench.ask([2])
    bench.engine.keep_rows(kept, MemorySource(lambda rows: rows, 4, None), {Plane.MEMORY: 4})
    bench.engine.free(LiveSession(b"", kept.session, released.tensors))
    _, good = bench.ask([3])
    await good.ended.wait()
    assert len(good.verdicts) == 3
    assert set(bench.lost) == {released, kept}


async def test_a_forward_that_fails_as_a_whole_ends_its_sessions_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(bench.engine._server_drafts, "deepen", fail)
        live, bad = bench.ask([1])
        await bad.ended.wait()
    assert bench.lost == [live]
    _, good = bench.ask([2])
    await good.ended.wait()
    assert len(good.verdicts) == 3


class Shelf(PrefixSharing):
    """Shares one page, which the store does not have; writes down what is discarded."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.discarded: list[Adoption | FilledPages] = []

    def begin(self, live: LiveSession) -> Adoption | None:
        return None if self.discarded else Adoption(live, 0, 64, live.session.tokens, 0, ())

    def on_read(self, live: LiveSession) -> FilledPages | None:
        return FilledPages(live, 0, ())

    def take_over(self, adoption: Adoption) -> None:
        raise self._error

    def keep(self, filled: FilledPages) -> None:
        if filled.live.session.tokens[0] == 5:
            raise self._error

    def discard(self, pages: Adoption | FilledPages) -> None:
        self.discarded.append(pages)


async def test_a_session_whose_shared_pages_are_missing_reads_its_text_itself() -> None:
    shelf = Shelf(PagesNotKept("1 page is not kept."))
    async with Bench(shelf).running() as bench:
        live, ear = bench.ask([1] * 10)  # a prompt
        await ear.ended.wait()
    assert ear.error is None
    assert live.session.tokens == [*[1] * 10, 7, 7, 7]
    assert [type(pages) for pages in shelf.discarded] == [Adoption]
    assert bench.lost == []


async def test_pages_that_cannot_be_kept_are_found_no_more_and_end_one_session() -> None:
    shelf = Shelf(MemoryError())
    shelf.discarded.append(FilledPages(LiveSession(b"", cast(Any, None), cast(Any, None)), 0, ()))  # nothing to adopt
    async with Bench(shelf).running() as bench:
        live, bad = bench.ask([5])
        _, good = bench.ask([1])
        await bad.ended.wait()
        await good.ended.wait()
    assert bench.lost == [live]
    assert [pages.live for pages in shelf.discarded[1:]] == [live]
    assert len(good.verdicts) == 3


async def test_chunks_are_coded_between_forwards(bench: Bench) -> None:
    live, ear = bench.ask([1])
    coded = await bench.engine.code(live, Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5))
    assert coded.payload == b"coded"
    with pytest.raises(InternalError, match="The server failed in this session"):
        await bench.engine.code(live, Chunk(Plane.MEMORY, 0, 13, Codec.INT4, 5))
    await ear.ended.wait()


async def test_rows_of_another_stream_s_forward_are_not_sent(bench: Bench) -> None:
    """Another stream takes the session over while a forward runs; its rows may be those of another drafter."""
    bench.stepper.gate.clear()
    live, ear = bench.ask([1], memory=True)
    live.stream = Attachment(ear, MemoryFeed({Plane.MEMORY: 4}, Codec.BF16, 1 << 20))
    bench.stepper.gate.set()
    await ear.ended.wait()
    await bench.engine.code(live, Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5))
    assert [rows.chunk.start for rows in ear.rows] != []
    assert len(ear.rows) == len(ear.verdicts) - 1

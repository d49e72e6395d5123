from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast
from unittest.mock import create_autospec

import numpy as np
import pytest
from moa_server.access.limits import TokenMeter
from moa_server.drafting.draft_decision import MemorySource
from moa_server.engine.engine import Engine
from moa_server.engine.live_session import Attachment, Listener, LiveSession
from moa_server.engine.schedule import Rows, Schedule
from moa_server.engine.stepper import CodedRows, NewestRows, Outcome, SessionTensors, Stepper, Work
from moa_server.session.memory_feed import Chunk, MemoryFeed
from moa_server.session.session import Session, SessionLimits
from moa_server.session.verification import StepPlan
from moa_shared.errors import InternalError, MoaError, TokenRangeError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import THIN, AnswerSettings, Ask, Draft, Finish, Plane, ThinMemory, Verdict
from moa_shared.tree import DraftTree

from tests.support.tiny_models import tiny_kernel_target, tiny_model

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
        assert self.gate.wait(60)
        assert threading.current_thread().name == "inference"
        self.forwards.append([f"{each.plan.feed[0]}:{len(each.plan.feed)}" for each in work])
        self.order.append("step")
        return [self._choose(each.plan) for each in work]

    def _choose(self, plan: StepPlan) -> Outcome:
        if plan.feed[0] in self.fail_verify:
            return self.fail_verify[plan.feed[0]]
        return plan.verify([7] * (1 + len(plan.tree))) if plan.chooses else None

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
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


class Bench:
    def __init__(self) -> None:
        self.stepper = FakeStepper()
        self.lost: list[LiveSession] = []
        self.schedule: Schedule[LiveSession] = Schedule()
        self.engine = Engine(self.stepper, self.lost.append, schedule=self.schedule)

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
    bench = Bench()
    bench.engine.start()
    yield bench
    await bench.engine.stop()


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
        assert self.gate.wait(60)
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


async def test_rows_wait_for_the_first_token_and_states_leave_with_their_verdict(bench: Bench) -> None:
    bench.stepper.gate.clear()
    live, ear = bench.ask([1] * 6)
    feed = MemoryFeed({Plane.MEMORY: 4, Plane.REUSED_STATE: 4}, Codec.BF16, 1 << 20)
    live.stream = Attachment(ear, feed)
    live.stream.budget.on_step(1.0, 1, 1.0)
    live.stream.budget.on_encoded(1e6)
    bench.stepper.gate.set()
    await ear.ended.wait()
    await ear.got_rows.wait()
    steps = bench.stepper.order
    assert steps[:2] == ["step", "step"]
    assert steps[-3:] == ["step", "states", "verdict"]
    assert ear.rows[0].payload == b"newest"
    assert {rows.chunk.plane for rows in ear.rows} == {Plane.REUSED_STATE}
    chunk = feed.take()
    assert chunk is not None
    assert chunk.start + chunk.count == live.session.cached


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
    assert not bench.engine.coder.may_code(live)
    assert ear.spare_times == 0
    bench.stepper.gate.set()
    await ear.ended.wait()
    await bench.engine.coder.code(live, Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5))  # comes after the last step
    assert ear.spare_times == 1
    assert bench.engine.coder.may_code(live)


@pytest.mark.parametrize("where", ["forward", "token", "rows", "commit", "drafts"])
async def test_an_error_ends_one_session(bench: Bench, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the forward it ends all that have a part in it."""
    if where in ("forward", "token"):
        bench.stepper.fail_verify[5] = RuntimeError("secret") if where == "forward" else TokenRangeError("token 99")
    live, bad = bench.ask([5] * (5 if where == "commit" else 1), memory=where == "rows")
    with monkeypatch.context() as patch:
        if where == "commit":
            patch.setattr(live.session, "on_prefilled", None)
        elif where == "drafts":
            patch.setattr(bench.engine._server_drafts, "deepen", None)
        bench.stepper.fail_rows = where == "rows"
        _, good = bench.ask([1]) if where != "drafts" else (None, None)
        while bad.error is None:
            await bad.ended.wait()
            bad.ended.clear()
    assert bench.lost == [live]
    assert live.closed
    assert isinstance(bad.error, TokenRangeError if where == "token" else InternalError)
    assert "secret" not in str(bad.error)
    bench.engine.wake(live)
    assert not live.turn.queued
    _, good = (live, good) if good is not None else bench.ask([2])
    await good.ended.wait()
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
    bench.engine.thread.submit(released.tensors.release)
    _, good = bench.ask([3])
    await good.ended.wait()
    assert len(good.verdicts) == 3
    assert set(bench.lost) == {released, kept}


async def test_rows_of_a_forward_that_was_overtaken_or_of_another_stream_are_not_sent(bench: Bench) -> None:
    """Another stream takes a session over while a forward runs; its rows may be those of another drafter."""
    chunk = Chunk(Plane.MEMORY, 0, 1, Codec.INT4, 5)
    bench.stepper.gate.clear()
    stopped, ear = bench.ask([1], memory=True)
    await asyncio.to_thread(bench.stepper.entered.wait, 60)  # what is coded now comes after this forward
    stopped.session.on_stop()
    bench.stepper.gate.set()
    await bench.engine.coder.code(stopped, chunk)
    assert not ear.verdicts
    assert not ear.rows
    bench.stepper.gate.clear()
    moved, ear = bench.ask([2], memory=True)
    moved.stream = Attachment(ear, MemoryFeed({Plane.MEMORY: 4}, Codec.BF16, 1 << 20))
    bench.stepper.gate.set()
    await ear.ended.wait()
    await bench.engine.coder.code(moved, chunk)
    assert len(ear.rows) == len(ear.verdicts) - 1 > 0


@pytest.mark.parametrize("wanted_at", [5, 20])
async def test_states_that_nobody_wants_are_made_once_somebody_does(wanted_at: int) -> None:
    """While there is no time for drafts, and a device makes do with few rows; the text is the same."""
    source = MemorySource(lambda kv: np.ascontiguousarray(kv.reshape(len(kv), -1)[:, :32]), 32, 1)
    stepper = Stepper(tiny_kernel_target(tiny_model(vocab_size=50)), [source])

    async def written(has_time: Callable[[int], bool]) -> tuple[bool, list[int], list[bytes]]:
        schedule, lost = Schedule[LiveSession](), list[LiveSession]()
        engine = Engine(stepper, lost.append, schedule=schedule)
        session = Session(SessionLimits(100, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
        feed = MemoryFeed({Plane.MEMORY: 32, Plane.REUSED_STATE: 64}, Codec.BF16, 1 << 20, thin=THIN)
        ear, widths = Ear(FakeStepper()), stepper.widths(source, reused_state=True)
        live = LiveSession(b"token", session, stepper.new_tensors(), stream=Attachment(ear, feed))
        schedule.has_time = lambda *_: has_time(len(ear.verdicts))  # type: ignore[method-assign]
        engine.start()
        engine.keep_rows(live, source, stepper.kept_widths(source, widths, drafts=False))
        session.on_ask(Ask(1, 0, session.hashes.at(0), [*range(1, 9)], AnswerSettings(max_tokens=24), 0))
        engine.wake(live)
        lacked = False
        while len(ear.verdicts) < 20:
            lacked = lacked or session.stateless_from is not None
            await asyncio.sleep(0)
        if wanted_at == 20:
            feed.want(None)
            engine.restore_states(live)
        await asyncio.wait_for(ear.ended.wait(), 60)
        await engine.stop()
        assert not lost
        rows = [live.tensors.read(plane, 0, session.cached).tobytes() for plane in widths]
        return lacked, session.tokens, rows

    _, *expected = await written(lambda _: True)
    assert await written(lambda tokens: tokens >= wanted_at != 20) == (True, *expected)


async def test_without_a_client_a_text_whose_states_were_not_kept_goes_on(bench: Bench) -> None:
    bench.stepper.gate.clear()
    live, ear = bench.ask([1, 2, 3])
    await asyncio.to_thread(bench.stepper.entered.wait, 60)
    live.session.stateless_from = 2
    live.detach()
    _, later = bench.ask([4, 5])
    bench.stepper.gate.set()
    await asyncio.wait_for(later.ended.wait(), 60)
    assert (live.session.stateless_from, live.session.tokens) == (2, [1, 2, 3, 7, 7, 7])
    assert not ear.verdicts

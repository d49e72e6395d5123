"""The link model: the order of its decisions, the queue, first-in-first-out, and that a seed repeats itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.conditions import Bernoulli, Conditions, ConditionSchedule, DelaySpec
from netsim.core.link import Direction, Drop, LinkModel, Reason, Release, Verdict

EMPTY = Conditions()


def link(conditions: Conditions = EMPTY, seed: int = 0) -> LinkModel:
    return LinkModel(ConditionSchedule([(0.0, conditions)]), seed, Direction.UP)


def arrival(verdict: Verdict) -> float:
    assert isinstance(verdict, Release)
    return verdict.t


@pytest.mark.parametrize(("conditions", "arrivals"), [
    (EMPTY, [5.0, 5.0]),
    (Conditions(rate_bps=1.2e6, delay=DelaySpec(20.0)), [5.03, 5.04]),
    (Conditions(rate_bps=1.2e6, burst_bytes=3000), [5.0, 5.0, 5.01, 5.02]),  # a burst goes at once after idling
    (
        Conditions(rate_bps=1.2e6, burst_bytes=3000, queue_bytes=10**9),
        [5.0, 5.0, *(5 + i / 100 for i in range(1, 199))],
    ),
])  # fmt: skip
def test_rate_delay_and_bursts(conditions: Conditions, arrivals: list[float]) -> None:
    model = link(conditions)
    assert [arrival(model.admit(1500, 5.0)) for _ in arrivals] == pytest.approx(arrivals)


def test_the_queue_drops_its_tail_and_drains() -> None:
    model = link(Conditions(rate_bps=1.2e6, queue_bytes=4500))
    verdicts = [model.admit(1500, 0.0) for _ in range(4)]
    assert verdicts[3] == Drop(Reason.QUEUE)
    assert isinstance(verdicts[2], Release)
    assert verdicts[2] == pytest.approx((0.03, 0.03, 0.0))
    assert (model.queued_bytes(0.0), model.queued_bytes(0.0101)) == (4500, 3000)
    assert isinstance(model.admit(1500, 0.0101), Release)


def test_outage_comes_before_loss_and_loss_before_the_queue() -> None:
    schedule = ConditionSchedule([(0.0, Conditions(loss=Bernoulli(1.0), queue_bytes=0))])
    schedule.blackhole(0.0, 1.0)
    model = LinkModel(schedule, 0, Direction.UP)
    assert [model.admit(100, t) for t in (0.5, 1.0)] == [Drop(Reason.OUTAGE), Drop(Reason.LOSS)]
    assert link(Conditions(rate_bps=0.0)).admit(100, 0.0) == Drop(Reason.OUTAGE)  # for ever


def test_an_outage_loses_what_is_under_way_and_a_hold_keeps_it() -> None:
    for what, in_it in ((ConditionSchedule.blackhole, Drop(Reason.OUTAGE)), (ConditionSchedule.hold, 2.0)):
        schedule = ConditionSchedule([(0.0, Conditions(delay=DelaySpec(100.0)))])
        what(schedule, 1.0, 2.0)
        model = LinkModel(schedule, 0, Direction.UP)
        verdict = model.admit(100, 0.95)
        assert (verdict.t if isinstance(verdict, Release) else verdict) == in_it
        assert arrival(model.admit(100, 2.0)) == pytest.approx(2.1)


def test_directions_draw_apart_and_the_observer_sees_every_verdict() -> None:
    varying = ConditionSchedule([(0.0, Conditions(delay=DelaySpec(50.0, 10.0)))])
    up, down = (LinkModel(varying, 1, direction).admit(1, 0.0) for direction in Direction)
    assert up != down
    seen: list[tuple[Direction, float, int, Verdict]] = []
    schedule = ConditionSchedule([(0.0, Conditions(loss=Bernoulli(0.5)))])
    model = LinkModel(schedule, 1, Direction.DOWN, lambda *what: seen.append(what))
    verdicts = [model.admit(100 + i, float(i)) for i in range(20)]
    assert seen == [(Direction.DOWN, float(i), 100 + i, verdict) for i, verdict in enumerate(verdicts)]


@given(
    packets=st.lists(st.tuples(st.integers(1, 1500), st.floats(0.0, 0.05)), min_size=1, max_size=60),
    seed=st.integers(0, 10),
)
def test_first_in_first_out_never_early_and_no_more_queued_than_its_limit(
    packets: list[tuple[int, float]], seed: int
) -> None:
    conditions = Conditions(2e6, DelaySpec(21.0, 19.0, correlation_ms=0.0), Bernoulli(0.1), 20_000, 3000)
    first, second, slow = link(conditions, seed), link(conditions, seed), link(Conditions(5e4, queue_bytes=6000))
    t, last = 0.0, 0.0
    for nbytes, gap in packets:
        t += gap
        verdict = first.admit(nbytes, t)
        assert verdict == second.admit(nbytes, t)
        if isinstance(verdict, Release):
            assert verdict.t >= max(t, last)
            assert verdict.queue_s >= 0.0
            last = verdict.t
        slow.admit(nbytes, t)
        assert 0 <= slow.queued_bytes(t) <= 6000

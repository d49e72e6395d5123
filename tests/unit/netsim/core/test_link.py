"""The link model: the order of its decisions, the queue, first-in-first-out, and that a seed repeats itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec, GilbertElliott
from netsim.core.link import Direction, Drop, LinkModel, Reason, Release, Verdict
from netsim.core.schedule import ConditionSchedule

EMPTY = Conditions()


def link(conditions: Conditions = EMPTY, seed: int = 0) -> LinkModel:
    return LinkModel(ConditionSchedule([(0.0, conditions)]), seed, Direction.UP)


def arrival(verdict: Verdict) -> float:
    assert isinstance(verdict, Release)
    return verdict.t


def test_an_empty_link_is_immediate() -> None:
    assert link().admit(1500, 2.0) == Release(2.0, 0.0, 0.0)


def test_rate_and_delay_add_up() -> None:
    model = link(Conditions(rate_bps=1.2e6, delay=DelaySpec(20.0)))
    assert arrival(model.admit(1500, 0.0)) == pytest.approx(0.030)
    second = model.admit(1500, 0.0)
    assert isinstance(second, Release)
    assert second == pytest.approx((0.040, 0.020, 0.020))


def test_the_queue_drops_its_tail_and_drains() -> None:
    model = link(Conditions(rate_bps=1.2e6, queue_bytes=4500))
    verdicts = [model.admit(1500, 0.0) for _ in range(4)]
    assert verdicts[3] == Drop(Reason.QUEUE)
    assert all(isinstance(verdict, Release) for verdict in verdicts[:3])
    assert model.queued_bytes(0.0) == 4500
    assert model.queued_bytes(0.0101) == 3000
    assert isinstance(model.admit(1500, 0.0101), Release)


def test_a_burst_goes_at_once_after_idling() -> None:
    model = link(Conditions(rate_bps=1.2e6, burst_bytes=3000))
    times = [arrival(model.admit(1500, 5.0)) for _ in range(4)]
    assert times == pytest.approx([5.0, 5.0, 5.01, 5.02])


def test_in_the_long_run_a_burst_changes_no_rate() -> None:
    model = link(Conditions(rate_bps=1.2e6, burst_bytes=3000, queue_bytes=10**9))
    last = [arrival(model.admit(1500, 5.0)) for _ in range(200)][-1]
    assert last == pytest.approx(5.0 + 198 * 0.01)


def test_outage_comes_before_loss_and_queue() -> None:
    schedule = ConditionSchedule([(0.0, Conditions(loss=Bernoulli(1.0), queue_bytes=0))])
    schedule.blackhole(0.0, 1.0)
    model = LinkModel(schedule, 0, Direction.UP)
    assert model.admit(100, 0.5) == Drop(Reason.OUTAGE)
    assert model.admit(100, 1.0) == Drop(Reason.LOSS)


def test_loss_comes_before_the_queue() -> None:
    assert link(Conditions(loss=Bernoulli(1.0), queue_bytes=0)).admit(100, 0.0) == Drop(Reason.LOSS)


def test_what_is_under_way_when_an_outage_begins_is_lost() -> None:
    schedule = ConditionSchedule([(0.0, Conditions(delay=DelaySpec(100.0)))])
    schedule.blackhole(1.0, 2.0)
    model = LinkModel(schedule, 0, Direction.UP)
    assert model.admit(100, 0.95) == Drop(Reason.OUTAGE)
    assert arrival(model.admit(100, 2.0)) == pytest.approx(2.1)


def test_a_hold_keeps_what_arrives_in_it() -> None:
    schedule = ConditionSchedule([(0.0, Conditions(delay=DelaySpec(100.0)))])
    schedule.hold(1.0, 2.0)
    model = LinkModel(schedule, 0, Direction.UP)
    assert arrival(model.admit(100, 0.95)) == 2.0
    assert arrival(model.admit(100, 1.5)) == pytest.approx(2.1)


def test_a_rate_of_zero_for_ever_is_an_outage() -> None:
    assert link(Conditions(rate_bps=0.0)).admit(100, 0.0) == Drop(Reason.OUTAGE)


def test_losses_do_not_shift_the_delays_of_others() -> None:
    delays = DelaySpec(50.0, 10.0)
    plain = link(Conditions(delay=delays), seed=4)
    lossy = link(Conditions(delay=delays, loss=GilbertElliott(0.1, 0.5)), seed=4)
    first = {i: plain.admit(100, float(i)) for i in range(300)}
    second = {i: lossy.admit(100, float(i)) for i in range(300)}
    # The process is correlated over 50 ms, packets a second apart: a lost one takes no draw with it only if the
    # sources are apart, which the first loss would show.
    lost = [i for i, verdict in second.items() if isinstance(verdict, Drop)]
    assert lost
    assert all(first[i] == second[i] for i in range(min(lost)))


@pytest.mark.parametrize("direction", list(Direction))
def test_directions_draw_apart(direction: Direction) -> None:
    schedule = ConditionSchedule([(0.0, Conditions(delay=DelaySpec(50.0, 10.0)))])
    mine = LinkModel(schedule, 1, direction).admit(1, 0.0)
    others = [LinkModel(schedule, 1, other).admit(1, 0.0) for other in Direction if other is not direction]
    assert mine not in others


def test_the_observer_sees_every_verdict() -> None:
    seen: list[tuple[Direction, float, int, Verdict]] = []
    schedule = ConditionSchedule([(0.0, Conditions(loss=Bernoulli(0.5)))])
    model = LinkModel(schedule, 1, Direction.DOWN, lambda *what: seen.append(what))
    verdicts = [model.admit(100 + i, float(i)) for i in range(20)]
    assert seen == [(Direction.DOWN, float(i), 100 + i, verdict) for i, verdict in enumerate(verdicts)]


packets = st.lists(st.tuples(st.integers(1, 1500), st.floats(0.0, 0.05)), min_size=1, max_size=60)


@given(packets=packets, seed=st.integers(0, 10))
def test_first_in_first_out_and_never_early(packets: list[tuple[int, float]], seed: int) -> None:
    conditions = Conditions(2e6, DelaySpec(21.0, 19.0, correlation_ms=0.0), Bernoulli(0.1), 20_000, 3000)
    first, second = link(conditions, seed), link(conditions, seed)
    t, last = 0.0, 0.0
    for nbytes, gap in packets:
        t += gap
        verdict = first.admit(nbytes, t)
        assert verdict == second.admit(nbytes, t)
        if isinstance(verdict, Release):
            assert verdict.t >= max(t, last)
            assert verdict.queue_s >= 0.0
            last = verdict.t


@given(packets=packets)
def test_the_queue_holds_no_more_than_its_limit(packets: list[tuple[int, float]]) -> None:
    model = link(Conditions(rate_bps=5e4, queue_bytes=6000))
    t = 0.0
    for nbytes, gap in packets:
        t += gap
        model.admit(nbytes, t)
        assert 0 <= model.queued_bytes(t) <= 6000

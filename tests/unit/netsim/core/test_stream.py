"""The virtual sender: every byte once and in order, the stalls that TCP shows, and its congestion window."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec, GilbertElliott
from netsim.core.link import Direction, Drop, LinkModel, Reason, Verdict
from netsim.core.schedule import ConditionSchedule
from netsim.core.stream import BETA, INITIAL_SEGMENTS, MAX_SEGMENTS, MSS, StreamSender, Window

from tests.support.properties import examples

ONE_WAY_S = 0.0213
RTT_S = 2 * ONE_WAY_S


class LossyLink(LinkModel):
    """Loses the packets whose numbers are given."""

    def __init__(self, schedule: ConditionSchedule, lost: set[int]) -> None:
        super().__init__(schedule, 0, Direction.UP)
        self._lost_numbers = lost
        self.count = 0

    def admit(self, nbytes: int, t: float) -> Verdict:
        self.count += 1
        return Drop(Reason.LOSS) if self.count in self._lost_numbers else super().admit(nbytes, t)


def constant() -> ConditionSchedule:
    # Just slow enough for segments to be judged one by one.
    return ConditionSchedule([(0.0, Conditions(rate_bps=99e6, delay=DelaySpec(ONE_WAY_S * 1e3)))])


def about(t: float) -> object:
    return pytest.approx(t, abs=1e-3)


def lossy_sender(*lost: int) -> StreamSender:
    return StreamSender(LossyLink(constant(), set(lost)), LinkModel(constant(), 0, Direction.DOWN), 0.0, RTT_S)


def arrivals(sender: StreamSender, offers: dict[float, int], until: float = 60.0) -> list[tuple[float, int]]:
    """(time, bytes) of what arrives, jumping from one wake-up to the next."""
    seen: list[tuple[float, int]] = []
    pending = sorted(offers.items())
    while True:
        t = min(sender.wake, pending[0][0] if pending else math.inf)
        if t > until:
            return seen
        sender.advance(t)
        if pending and pending[0][0] <= t:
            sender.offer(pending.pop(0)[1], t)
        delivery = sender.deliver(t)
        if delivery.nbytes:
            seen.append((t, delivery.nbytes))


def test_without_loss_only_the_delay_is_added() -> None:
    assert arrivals(lossy_sender(), {1.0: 100}) == [(about(1.0 + ONE_WAY_S), 100)]


def test_a_lost_packet_alone_waits_for_the_time_out() -> None:
    """RTO = SRTT + 200 ms: measured as +247 ms on a link of 42.6 ms."""
    [(t, _)] = arrivals(lossy_sender(1), {1.0: 100})
    assert t - 1.0 - ONE_WAY_S == pytest.approx(RTT_S + 0.2, abs=0.025)


@pytest.mark.parametrize(("gap_s", "measured_s"), [(0.020, 0.062), (0.100, 0.143)])
def test_a_later_packet_shows_the_loss(gap_s: float, measured_s: float) -> None:
    """Gap to the next packet, and a round trip: measured as +62 and +143 ms."""
    seen = arrivals(lossy_sender(1), {1.0: 100, 1.0 + gap_s: 100})
    assert seen[0][0] - 1.0 - ONE_WAY_S == pytest.approx(measured_s, abs=0.005)
    assert sum(nbytes for _, nbytes in seen) == 200


def test_the_tail_of_a_flight_is_probed() -> None:
    seen = arrivals(lossy_sender(3), {1.0: 3 * 1448})
    assert [nbytes for _, nbytes in seen] == [1448, 1448, 1448]
    assert seen[1][0] == about(1.0 + ONE_WAY_S)
    assert seen[2][0] - 1.0 - ONE_WAY_S == pytest.approx(2 * RTT_S, abs=0.03)


def test_a_retransmission_lost_too_doubles_the_time_out() -> None:
    [(t, _)] = arrivals(lossy_sender(1, 2), {1.0: 100})
    assert t - 1.0 - ONE_WAY_S == pytest.approx(3 * (RTT_S + 0.2), abs=0.05)


def test_the_window_doubles_each_round_trip() -> None:
    seen = arrivals(lossy_sender(), {0.0: 70 * 1448})
    rounds = [sum(n for t, n in seen if k <= (t - ONE_WAY_S) / RTT_S < k + 0.9) / 1448 for k in range(3)]
    assert rounds == [10, 20, 40]


def test_bulk_with_loss_is_near_the_square_root_law() -> None:
    """20 Mbit/s, 21 ms each way, 0.1 % loss, cubic: 12.3 Mbit/s were measured, Mathis gives 10.4."""
    conditions = Conditions(20e6, DelaySpec(21.0), Bernoulli(0.001))
    up = LinkModel(ConditionSchedule([(0.0, conditions)]), 3, Direction.UP)
    sender = StreamSender(up, LinkModel(ConditionSchedule([(0.0, conditions)]), 3, Direction.DOWN), 0.0, 0.042)
    sender.offer(200_000_000, 0.0)
    received, t = 0, 0.0
    while t < 60.0:
        t = sender.wake
        sender.advance(t)
        received += sender.deliver(t).nbytes
    assert 8.0 < received * 8e-6 / t < 16.0


def test_an_outage_stalls_and_continues() -> None:
    schedule = constant()
    schedule.blackhole(1.0, 2.0)
    sender = StreamSender(LinkModel(schedule, 0, Direction.UP), LinkModel(constant(), 0, Direction.DOWN), 0.0, RTT_S)
    seen = arrivals(sender, {0.9: 5000, 1.5: 300})
    assert sum(nbytes for _, nbytes in seen) == 5300
    assert not [t for t, _ in seen if 1.0 <= t < 2.0]
    # The retransmission that finds the link again comes at the latest one doubled time-out after its return.
    assert seen[-1][0] < 3.5


def test_a_cut_without_warning_loses_what_is_under_way() -> None:
    schedule = constant()
    sender = StreamSender(LinkModel(schedule, 0, Direction.UP), LinkModel(constant(), 0, Direction.DOWN), 0.0, RTT_S)
    sender.offer(1000, 1.0)
    schedule.blackhole(1.01, math.inf)
    sender.cut(1.01)
    assert arrivals(sender, {}, until=5.0) == []
    schedule.heal(5.0)
    assert sum(nbytes for _, nbytes in arrivals(sender, {})) == 1000


def test_a_cut_of_acknowledgements_delays_no_data_at_first() -> None:
    back = constant()
    back.blackhole(0.5, 3.0)
    sender = StreamSender(LinkModel(constant(), 0, Direction.UP), LinkModel(back, 0, Direction.DOWN), 0.0, RTT_S)
    seen = arrivals(sender, {1.0: 30 * 1448})
    # The first window arrives; the rest waits for acknowledgements, which come when the way back is open again.
    assert sum(n for t, n in seen if t < 3.0) == 10 * 1448
    assert sum(n for _, n in seen) == 30 * 1448


def test_the_end_comes_after_the_bytes() -> None:
    sender = lossy_sender(1)
    sender.offer(100, 1.0)
    sender.offer_end(1.0)
    nbytes, end = 0, False
    while sender.wake < math.inf:
        t = sender.wake
        sender.advance(t)
        delivery = sender.deliver(t)
        nbytes += delivery.nbytes
        assert not (delivery.end and nbytes < 100)
        end = end or delivery.end
    assert (nbytes, end) == (100, True)


def test_nothing_is_sent_before_the_handshake() -> None:
    sender = StreamSender(LinkModel(constant(), 0, Direction.UP), LinkModel(constant(), 0, Direction.DOWN), 5.0, RTT_S)
    assert arrivals(sender, {1.0: 10}) == [(about(5.0 + ONE_WAY_S), 10)]


@settings(max_examples=examples(60))
@given(
    offers=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(1, 40_000)), min_size=1, max_size=15),
    loss=st.sampled_from([Bernoulli(0.0), Bernoulli(0.2), GilbertElliott(0.1, 0.3)]),
    rate=st.sampled_from([1e6, 20e6, 500e6, math.inf]),
    outage=st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 2.0)),
    cut=st.none() | st.floats(0.5, 2.0),
    seed=st.integers(0, 5),
)
def test_every_byte_arrives_once_and_not_before_it_was_offered(
    offers: list[tuple[float, int]],
    loss: Bernoulli | GilbertElliott,
    rate: float,
    outage: tuple[float, float],
    cut: float | None,
    seed: int,
) -> None:
    schedules = [ConditionSchedule([(0.0, Conditions(rate, DelaySpec(20.0, 15.0), loss, 64 * 1024))]) for _ in range(2)]
    for schedule in schedules:
        schedule.blackhole(outage[0], sum(outage))
    sender = StreamSender(
        LinkModel(schedules[0], seed, Direction.UP), LinkModel(schedules[1], seed, Direction.DOWN), 0.0, 0.04
    )
    pending = sorted(offers)
    offered = delivered = steps = 0
    while pending or sender.wake < math.inf:
        steps += 1
        assert steps < 200_000, "the sender does not come to an end"
        t = min(sender.wake, pending[0][0] if pending else math.inf)
        if cut is not None and t >= cut:
            sender.cut(cut)
            cut = None
        sender.advance(t)
        while pending and pending[0][0] <= t:
            offered += pending[0][1]
            sender.offer(pending.pop(0)[1], t)
        delivered += sender.deliver(t).nbytes
        assert delivered <= offered
    assert delivered == offered


def test_slow_start_adds_what_is_acknowledged() -> None:
    window = Window(0.05)
    for i in range(10):
        window.on_ack(MSS, 0.05, 0.05 + i * 1e-4, limited=True)
    assert window.segments == 20.0


def test_what_does_not_use_the_window_does_not_widen_it() -> None:
    window = Window(0.05)
    window.on_ack(MSS, 0.05, 0.05, limited=False)
    assert window.segments == INITIAL_SEGMENTS


def test_a_loss_takes_three_tenths() -> None:
    window = Window(0.05)
    window.segments = 100.0
    window.on_loss()
    assert window.segments == pytest.approx(100.0 * BETA)


def test_cubic_comes_back_to_its_peak() -> None:
    window = Window(0.2)
    window.segments = 100.0
    window.on_loss()
    # K = ((100 - 70) / 0.4) ** (1 / 3) = 4.2 s (RFC 9438).
    t = 0.0
    while t < 4.2:
        t += 0.2
        for _ in range(int(window.segments)):
            window.on_ack(MSS, 0.2, t, limited=True)
    assert window.segments == pytest.approx(100.0, rel=0.05)


def test_time_outs_double_and_an_acknowledgement_ends_that() -> None:
    window = Window(0.05)
    first = window.rto_s
    assert first == pytest.approx(0.25)
    window.on_timeout()
    window.on_timeout()
    assert window.rto_s == pytest.approx(4 * first)
    assert window.segments == 1.0
    window.on_ack(MSS, 0.05, 1.0, limited=True)
    assert window.rto_s == pytest.approx(first, rel=0.05)


def test_a_pause_brings_the_window_back() -> None:
    window = Window(0.05)
    window.segments = 80.0
    window.on_idle(0.1)
    assert window.segments == 80.0
    window.on_idle(60.0)
    assert window.segments == INITIAL_SEGMENTS


def test_a_rising_round_trip_ends_slow_start() -> None:
    window = Window(0.05)
    window.segments = 20.0
    for i in range(40):
        window.on_ack(MSS, 0.05 + (0.02 if i > 10 else 0.0), i * 0.002, limited=True)
    assert window.threshold < 100.0


def test_the_window_has_an_end() -> None:
    window = Window(0.05)
    for i in range(5000):
        window.on_ack(MSS, 0.05, i * 1e-3, limited=True)
    assert window.segments <= MAX_SEGMENTS + 1

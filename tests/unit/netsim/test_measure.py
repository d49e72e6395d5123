"""From a measurement to a profile and a trace."""

import pytest
import yaml
from netsim.core.link import Direction
from netsim.measure import WIRE_SHARE, Measurement, to_profile, to_trace
from netsim.profiles import parse
from netsim.traces import Row

SEEN = Measurement(
    round_trips_ms=[(0.1, 40.0), (0.6, 60.0), (1.2, 50.0)],
    down_mbps=[(2.0, 10.0), (3.0, 12.0)],
    up_mbps=[(2.0, 2.0)],
    loss=0.002,
)


def test_a_profile_reads_back_with_the_round_trips_moments() -> None:
    profile = parse(yaml.safe_dump(to_profile(SEEN, "home", "host:1")), "home.yaml")
    up, down = profile.conditions(Direction.UP), profile.conditions(Direction.DOWN)
    assert up.delay.effective().mean_ms == pytest.approx(25.0, abs=0.01)
    # Two halves drawn apart: their sum deviates by sqrt(2) of each.
    assert up.delay.effective().deviation_ms * 2**0.5 == pytest.approx(8.165, rel=0.01)
    assert down.rate_bps == pytest.approx(11e6 * WIRE_SHARE, rel=1e-3)
    assert up.rate_bps == pytest.approx(2e6 * WIRE_SHARE, rel=1e-3)
    assert up.loss.mean == 0.002


def test_without_load_nothing_is_said_of_rates() -> None:
    document = to_profile(Measurement([(0.0, 5.0)], far_end=False), "x", "h:1")
    assert not {"up", "down", "loss", "rate_mbps"} & document.keys()


def test_a_trace_has_a_row_a_second() -> None:
    rows = to_trace(SEEN).rows
    assert [row.t_s for row in rows] == [0.0, 1.0, 2.0, 3.0]
    assert rows[0] == Row(0.0, rtt_ms=50.0)
    assert rows[2].down_mbps == pytest.approx(10.0 * WIRE_SHARE, abs=1e-3)
    assert rows[3].up_mbps is None

"""The tc commands."""

from __future__ import annotations

from netsim.core.link import Direction
from netsim.profile import profiles
from netsim.profile.netem import tc_commands


def test_4g_as_tc() -> None:
    lines = tc_commands(profiles.load("4g"), "eth0", Direction.UP)
    assert lines[-1] == (
        "tc qdisc replace dev eth0 root netem limit 321 "
        "delay 25.755ms 15.445ms distribution normal loss 0.1% rate 20000kbit"
    )
    assert any("overtake" in line for line in lines)
    assert all(line.startswith("#") for line in lines[:-1])


def test_bursts_of_loss_and_a_timeline() -> None:
    lines = tc_commands(profiles.load("lte-train"), "wwan0", Direction.DOWN)
    assert "loss gemodel 0.2% 30% 30% 0.05%" in lines[-1]
    assert any("timeline is left out" in line for line in lines)


def test_a_perfect_link_needs_nothing() -> None:
    assert tc_commands(profiles.load("perfect"), "lo", Direction.UP)[-1] == (
        "tc qdisc replace dev lo root netem limit 175"
    )

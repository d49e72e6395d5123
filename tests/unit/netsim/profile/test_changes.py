"""Settings of a running link."""

from __future__ import annotations

import math

import pytest
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec
from netsim.errors import EventError
from netsim.profile.profiles import change_of, parse_settings


def test_settings_change_only_what_they_name() -> None:
    before = Conditions(1e6, DelaySpec(20.0, 5.0, scale=0.5), Bernoulli(0.1), 1000)
    after = change_of(parse_settings(("delay_ms=80", "loss=0.2", "queue_kib=8")))(before)
    assert after.rate_bps == 1e6
    assert after.delay == DelaySpec(80.0, 2.5)
    assert (after.loss, after.queue_bytes) == (Bernoulli(0.2), 8192)


def test_a_limit_can_be_lifted() -> None:
    assert change_of(parse_settings(("rate_mbps=none",)))(Conditions(1e6)).rate_bps == math.inf
    assert change_of(parse_settings(("rate_mbps=2",)))(Conditions()).rate_bps == 2e6


@pytest.mark.parametrize(
    "word",
    ["speed=3", "rate_mbps", "rate_mbps=fast", "loss=1.5", "delay_ms=-1", "queue_kib=1", "delay_ms=none", "loss=nan"],
)
def test_nonsense_is_refused(word: str) -> None:
    with pytest.raises(EventError):
        parse_settings((word,))

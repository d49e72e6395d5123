"""What the simulation expects of a measured answer."""

from __future__ import annotations

import pytest
from moa_bench.network.emulated import Link, find_links
from moa_bench.network.oracle import Script
from moa_bench.network.prediction import Schedule, predict_seconds
from moa_bench.network.step_cost import TORCH_COST
from moa_bench.report.answers import TimedAnswer

PROMPT, TOKENS, STEP_S, FIRST_S = 5, 40, 0.05, 0.2
PLAIN = TimedAnswer(tuple(range(TOKENS)), tuple(FIRST_S + number * STEP_S for number in range(TOKENS)))


def script(acceptance: float, seed: int = 1) -> Script:
    return Script(tuple(range(100, 100 + PROMPT + TOKENS)), acceptance, seed, 1000)


def seconds(acceptance: float, link: str = "RTT 0", schedule: Schedule | None = None) -> float:
    schedule = schedule or Schedule("streamed", 4, 5.0)
    return predict_seconds(schedule, find_links((link,))[0], script(acceptance), PLAIN, TORCH_COST)


@pytest.mark.parametrize("link", ["RTT 0", "4G", "RTT 300 ms"])
def test_a_useless_drafter_takes_as_long_as_plain_streaming(link: str) -> None:
    assert seconds(0.0, link) == pytest.approx(PLAIN.arrivals_s[-1], rel=0.04)


def test_better_drafters_and_shorter_links_are_faster() -> None:
    by_acceptance = [seconds(acceptance) for acceptance in (0.0, 0.65, 1.0)]
    assert by_acceptance == sorted(by_acceptance, reverse=True)
    by_link = [seconds(0.8, link) for link in ("RTT 0", "4G", "RTT 300 ms")]
    assert by_link == sorted(by_link)


def test_a_round_pays_the_round_trip() -> None:
    link = Link("RTT 100 ms", 50.0)
    rounds = predict_seconds(Schedule("rounds", 1, 0.0), link, script(0.0), PLAIN, TORCH_COST)
    assert rounds == pytest.approx(FIRST_S + (TOKENS - 1) * (0.1 + STEP_S * 1.04), rel=0.03)


def test_the_luck_is_that_of_the_script() -> None:
    one, other = (
        predict_seconds(Schedule("streamed", 4, 5.0), Link("RTT 0"), script(0.5, seed), PLAIN, TORCH_COST)
        for seed in (1, 2)
    )
    assert one != other

"""What is counted of answers that meet restarts."""

from __future__ import annotations

from moa_bench.fleet.asked import Asked
from moa_bench.fleet.replicas import Restart
from moa_bench.restarts.figures import Survived

TEXTS = [(1, 2, 3), (4, 5)]
RESTARTS = [Restart(10.0, 11.0, 14.0), Restart(20.0, 20.5, 22.0)]


def test_a_stall_is_the_longest_wait_that_a_restart_had_a_part_in() -> None:
    asked = Asked(0, 0, 5.0, 16.0, [9.0, 9.5, 15.0], (1, 2, 3))
    assert asked.stall_s(RESTARTS[0]) == 5.5
    assert asked.stall_s(RESTARTS[1]) == 0.0
    assert asked.meets(RESTARTS[0])
    assert not asked.meets(RESTARTS[1])


def test_lost_and_different_answers_are_told_apart() -> None:
    whole = Asked(0, 0, 5.0, 16.0, [9.0, 15.0], (1, 2, 3))
    other = Asked(1, 1, 9.0, 17.0, [13.0], (4, 6))
    short = Asked(2, 0, 19.0, 23.0, [], (1, 2))
    lost = Asked(3, 1, 1.0, 2.0, failure="There is no server.")
    survived = Survived.of([whole, other, short, lost], TEXTS, RESTARTS)
    assert survived == Survived(
        answers=4,
        through=3,
        lost=1,
        different=2,
        stall_median_s=4.0,
        stall_longest_s=6.0,
        away_median_s=3.0,
        failures=("There is no server.",),
    )

"""The map of where drafts pay: a round of all ways, what is best in it, and how it is told."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from inline_snapshot import snapshot
from moa_bench.suites.payoff.measure import STRATEGIES, measure_cell
from moa_bench.suites.payoff.tables import best, ratios, told
from moa_bench.users.figures import UsersCell, UserStats
from moa_bench.users.plan import UsersPlan
from moa_bench.users.strategies import Strategy


class FakePlan:
    """Gives each way its speed; plain serving slows down from one time to the next."""

    def __init__(self, speeds: dict[str, list[float]], other_texts: tuple[str, ...] = ()) -> None:
        self._speeds = speeds
        self._other_texts = other_texts

    async def measure(self, users: int, way: Strategy) -> UsersCell:
        speed = self._speeds[way.drafts].pop(0)
        met = UserStats(speed, 20.0, 40.0, 100.0, 900.0, 1.0, 0.98, speed, speed, 8, 0)
        return UsersCell(users, way, met, 0.1, int(way.drafts in self._other_texts))


def cell(other_texts: tuple[str, ...] = ()) -> dict[str, Any]:
    speeds = {
        "plain": [60.0, 40.0, 80.0, 120.0, 50.0, 50.0],
        "server": [75.0, 10.0, 90.0],
        "shipped": [45.0, 90.0, 20.0],
        "everything": [48.0, 96.0, 49.0],
    }
    with asyncio.Runner() as runner:
        found = measure_cell(runner, cast("UsersPlan", FakePlan(speeds, other_texts)), 4, 3)
    return found | {"rtt_ms": 50.0, "users": 4}


def test_ways_are_relative_to_plain_serving_before_and_after_in_the_same_round() -> None:
    assert list(ratios(cell()).values()) == [1.5, 0.9, 0.96]
    assert best(cell()) == ("server's drafts", 1.5)


def test_another_text_is_no_gain() -> None:
    assert best(cell(("server",))) == ("plain", 1.0)


def test_a_loss_with_everything_on_is_told() -> None:
    assert told([cell()]) == snapshot("With everything on, below 0.97: 50 ms and 4 users (0.96).\n")


def test_nothing_is_told_of_what_was_not_measured() -> None:
    speeds = {"plain": [50.0, 50.0], "oracle": [60.0]}
    with asyncio.Runner() as runner:
        found = measure_cell(
            runner, cast("UsersPlan", FakePlan(speeds)), 4, 1, (Strategy("plain"), Strategy("oracle", 0.8))
        )
    assert best(found) == ("devices' drafts, acceptance 0.8", 1.2)
    assert told([found | {"rtt_ms": 50.0, "users": 4}]) == ""


def test_plain_serving_is_measured_first_and_last() -> None:
    assert STRATEGIES[0] == Strategy("plain")
    assert [[len(found) for found in ways.values()] for ways in cell()["rounds"]] == [[2, 1, 1, 1]] * 3

"""What arithmetic makes of a round trip, from times without one."""

from __future__ import annotations

from typing import Any

import pytest
from moa_bench.suites.split.closed_form import over_plain
from moa_bench.suites.split.names import ALL, CO_LOCATED, PLAIN

ROUNDS, AHEAD = "A: synchronous rounds", "A: one round ahead"
LINKS = {"RTT 0": {"rtt_ms": 0.0, "recorded": False}, "far": {"rtt_ms": 100.0, "recorded": False}}


def took(forwards: int, period_s: float, first_s: float) -> dict[str, Any]:
    seconds = first_s + (forwards - 1) * period_s
    return {"tokens": 21, "forwards": forwards, "first_ms": 1e3 * first_s, "seconds": seconds, "same": True}


def a_round(link: str, first_s: float, **more: dict[str, Any]) -> dict[str, Any]:
    plain = took(21, 0.01, first_s)
    return {"link": link, "answers": {PLAIN: [plain, plain]} | {name: [each] for name, each in more.items()}}


def test_a_round_trip_is_paid_by_each_round_and_by_none_of_the_servers_own() -> None:
    methods = {ROUNDS: took(11, 0.03, 0.05), AHEAD: took(11, 0.03, 0.05), CO_LOCATED: took(11, 0.015, 0.05)}
    there = {name: took(11, 1.0, 0.1) for name in methods}  # what rounds took there is not asked
    rounds = [a_round("RTT 0", 0.05, **methods), a_round("far", 0.1, **there, **{ALL: took(11, 0.1, 0.1)})]
    plain_s = 0.1 + 20 * 0.01
    assert over_plain(rounds, "far", LINKS) == pytest.approx(
        {
            ROUNDS: plain_s / (0.1 + 10 * 0.13),
            AHEAD: plain_s / (0.1 + 10 * 0.11),  # drafting is hidden in the round trip
            CO_LOCATED: plain_s / (0.1 + 10 * 0.015),
        },
        abs=1e-4,
    )


def test_where_drafting_takes_longer_than_the_round_trip_it_is_hidden_altogether() -> None:
    links = LINKS | {"near": {"rtt_ms": 5.0, "recorded": False}}
    rounds = [
        a_round("RTT 0", 0.05, **{AHEAD: took(11, 0.03, 0.05)}),
        a_round("near", 0.05, **{AHEAD: took(11, 1.0, 0.05)}),
    ]
    assert over_plain(rounds, "near", links) == pytest.approx({AHEAD: 0.25 / (0.05 + 10 * 0.03)}, abs=1e-4)


@pytest.mark.parametrize("link", ["RTT 0", "drive"])
def test_nothing_is_said_of_the_base_and_of_recorded_links(link: str) -> None:
    links = LINKS | {"drive": {"rtt_ms": 100.0, "recorded": True}}
    rounds = [a_round(name, 0.05, **{ROUNDS: took(11, 0.03, 0.05)}) for name in ("RTT 0", link)]
    assert over_plain(rounds, link, links) == {}


def test_nothing_is_said_without_times_over_no_link() -> None:
    rounds = [a_round("far", 0.1, **{ROUNDS: took(11, 0.1, 0.1)})]
    assert over_plain(rounds, "far", {"far": LINKS["far"]}) == {}


def test_a_method_that_failed_without_a_link_has_no_closed_form() -> None:
    broken = a_round("RTT 0", 0.05, **{ROUNDS: {"failure": "It is away."}})
    assert over_plain([broken, a_round("far", 0.1, **{ROUNDS: took(11, 0.1, 0.1)})], "far", LINKS) == {}

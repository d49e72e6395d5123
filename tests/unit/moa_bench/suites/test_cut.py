"""Plans of incidents, and what a screen says about one."""

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.harness.split_client import Moment
from moa_bench.suites.cut import (
    LATEST_S,
    LONGEST_S,
    SHORTEST_S,
    IncidentKind,
    InjectedIncident,
    judge_incident,
    plan_incidents,
)


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers())
def test_a_plan_holds_what_was_asked_for(cuts: int, resets: int, kills: int, seed: int) -> None:
    plan = plan_incidents(cuts, resets, kills, seed)
    assert Counter(planned.kind for planned in plan) == Counter(
        {IncidentKind.CUT: cuts, IncidentKind.RESET: resets, IncidentKind.KILL: kills}
    )
    for planned in plan:
        assert 0.0 <= planned.after_s <= LATEST_S
        lasts = planned.kind is IncidentKind.CUT
        assert (SHORTEST_S <= planned.seconds <= LONGEST_S) if lasts else planned.seconds == 0.0
    assert plan == plan_incidents(cuts, resets, kills, seed)
    assert LATEST_S < max(planned.after_s for planned in plan_incidents(50, 0, 0, seed, answer_s=10.0)) <= 10.0


FOUR = [Moment(1.0, 1, 1, True), Moment(2.0, 2, 2, True), Moment(6.5, 3, 3, True), Moment(7.0, 4, 4, True)]
# Twice standalone, then the answer is full; a correction: the rest was wrong.
STANDALONE = [
    Moment(1.0, 1, 1, True), Moment(1.25, 2, 1, True), Moment(1.5, 3, 1, True), Moment(5.0, 2, 2, False),
    Moment(5.5, 3, 3, True),
]  # fmt: skip
SEVERAL = [Moment(1.0, 1, 1, True), Moment(1.5, 2, 1, True), Moment(3.25, 3, 1, True), Moment(3.75, 4, 4, True)]
FULL = [Moment(1.0, 3, 1, True), Moment(5.0, 3, 3, False)]
BEFORE = [Moment(5.0, 1, 1, True), Moment(5.25, 2, 2, True), Moment(5.75, 3, 3, True), Moment(6.0, 4, 4, True)]
NEXT = [Moment(1.0, 1, 1, True), Moment(9.0, 2, 2, True)]


@pytest.mark.parametrize(
    ("moments", "at_s", "healed_s", "next_s", "found"),
    [
        pytest.param(FOUR, 2.5, 5.5, math.inf, (4500.0, 1000.0, False), id="a client that waits stalls until text"),
        pytest.param(STANDALONE, 1.125, 4.0, math.inf, (250.0, 1000.0, True), id="a standalone one until its own"),
        pytest.param(SEVERAL, 1.25, 3.5, math.inf, (1750.0, 250.0, True), id="the longest of several waits"),
        pytest.param(FULL, 2.0, 4.0, math.inf, (None, 1000.0, False), id="a full screen does not stall"),
        pytest.param(BEFORE, 5.5, 5.5625, math.inf, (500.0, 187.5, False), id="waits that ended before do not count"),
        pytest.param(NEXT, 1.5, 2.0, 3.0, (2000.0, None, False), id="the next incident ends what is said"),
        pytest.param([Moment(1.0, 1, 1, True)], 2.0, 3.0, math.inf, None, id="an answer that was over"),
    ],
)
def test_what_a_screen_says(
    moments: list[Moment], at_s: float, healed_s: float, next_s: float, found: tuple[object, ...] | None
) -> None:
    """Verdicts came whenever committed text grew."""
    pairs = pairwise([Moment(0, 0, 0, False), *moments])
    verdicts = [later.at_s for earlier, later in pairs if later.committed > earlier.committed]
    struck = InjectedIncident(IncidentKind.CUT, at_s, healed_s, next_s)
    said = judge_incident(struck, moments, verdicts, answer_tokens=max(each.length for each in moments), whole=True)
    assert (None if said is None else (said.stall_ms, said.resume_ms, said.alone)) == found

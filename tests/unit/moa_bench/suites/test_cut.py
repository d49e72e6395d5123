"""Plans of incidents, and what a screen says about one."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from moa_bench.harness.split_client import Moment
from moa_bench.suites.cut.incidents import (
    LATEST_S,
    LONGEST_S,
    SHORTEST_S,
    Incident,
    IncidentKind,
    InjectedIncident,
    judge_incident,
    plan_incidents,
)
from moa_bench.suites.cut.measure import _since


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


def test_incidents_are_further_apart_where_answers_take_longer() -> None:
    assert LATEST_S < max(planned.after_s for planned in plan_incidents(50, 0, 0, 0, answer_s=10.0)) <= 10.0


def judge(
    moments: list[Moment], at_s: float, healed_s: float, answer_tokens: int, next_s: float = math.inf
) -> Incident | None:
    """Verdicts came whenever committed text grew."""
    verdicts = [
        later.at_s
        for earlier, later in pairwise([Moment(0, 0, 0, False), *moments])
        if later.committed > earlier.committed
    ]
    struck = InjectedIncident(IncidentKind.CUT, at_s, healed_s, next_s)
    return judge_incident(struck, moments, verdicts, answer_tokens=answer_tokens, whole=True)


def test_a_client_that_waits_stalls_until_the_next_token() -> None:
    moments = [Moment(1.0, 1, 1, True), Moment(2.0, 2, 2, True), Moment(6.5, 3, 3, True), Moment(7.0, 4, 4, True)]
    assert judge(moments, 2.5, 5.5, 4) == Incident(IncidentKind.CUT, 3.0, 4500.0, 1000.0, False, True)


def test_a_standalone_client_stalls_until_its_own_text() -> None:
    moments = [
        Moment(1.0, 1, 1, True),
        Moment(1.25, 2, 1, True),  # alone
        Moment(1.5, 3, 1, True),  # alone, and the answer is full
        Moment(5.0, 2, 2, False),  # corrected: the rest was wrong
        Moment(5.5, 3, 3, True),
    ]
    found = judge(moments, 1.125, 4.0, 3)
    assert found == Incident(IncidentKind.CUT, 2.875, 250.0, 1000.0, True, True)


def test_the_longest_of_several_waits_is_the_stall() -> None:
    moments = [
        Moment(1.0, 1, 1, True),
        Moment(1.5, 2, 1, True),  # alone
        Moment(3.25, 3, 1, True),  # alone
        Moment(3.75, 4, 4, True),
    ]
    found = judge(moments, 1.25, 3.5, 4)
    assert found is not None
    assert (found.stall_ms, found.resume_ms) == (1750.0, 250.0)


def test_a_full_screen_does_not_stall() -> None:
    moments = [Moment(1.0, 3, 1, True), Moment(5.0, 3, 3, False)]
    found = judge(moments, 2.0, 4.0, 3)
    assert found is not None
    assert (found.stall_ms, found.resume_ms) == (None, 1000.0)


def test_waits_that_ended_before_do_not_count() -> None:
    moments = [Moment(5.0, 1, 1, True), Moment(5.25, 2, 2, True), Moment(5.75, 3, 3, True), Moment(6.0, 4, 4, True)]
    found = judge(moments, 5.5, 5.5625, 4)
    assert found is not None
    assert (found.stall_ms, found.resume_ms) == (500.0, 187.5)


def test_the_next_incident_ends_what_is_said_of_this_one() -> None:
    moments = [Moment(1.0, 1, 1, True), Moment(9.0, 2, 2, True)]
    found = judge(moments, 1.5, 2.0, 2, next_s=3.0)
    assert found is not None
    assert (found.stall_ms, found.resume_ms) == (2000.0, None)


def test_an_answer_that_was_over_says_nothing() -> None:
    assert judge([Moment(1.0, 1, 1, True)], 2.0, 3.0, 1) is None


def test_each_incident_knows_when_the_next_one_began() -> None:
    struck = [InjectedIncident(IncidentKind.CUT, 11.0, 11.5), InjectedIncident(IncidentKind.RESET, 12.0, 12.0)]
    assert _since(10.0, struck) == [
        InjectedIncident(IncidentKind.CUT, 1.0, 1.5, 2.0),
        InjectedIncident(IncidentKind.RESET, 2.0, 2.0, math.inf),
    ]
    assert _since(10.0, []) == []

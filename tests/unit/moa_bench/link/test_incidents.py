"""Plans of incidents, and what arrivals say about one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_bench.link.incidents import LONGEST_CUT_S, SHORTEST_CUT_S, Incident, Kind, judge_incident, plan_incidents


@settings(deadline=None)  # a busy machine is not a defect
@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(1, 5), st.integers())
def test_a_plan_holds_what_was_asked_for(cuts: int, resets: int, kills: int, prompts: int, seed: int) -> None:
    plan = plan_incidents(cuts, resets, kills, prompts, seed)
    assert Counter(planned.kind for planned in plan) == Counter({Kind.CUT: cuts, Kind.RESET: resets, Kind.KILL: kills})
    assert all(0 <= planned.prompt < prompts and 0 <= planned.at < 1 for planned in plan)
    for planned in plan:
        lasts = planned.kind is Kind.CUT
        assert (SHORTEST_CUT_S <= planned.seconds <= LONGEST_CUT_S) if lasts else planned.seconds == 0.0
    assert plan == plan_incidents(cuts, resets, kills, prompts, seed)


def test_the_stall_and_the_time_to_resume() -> None:
    arrivals = [0.0, 1.0, 2.0, 6.5, 7.0]  # the question, then tokens
    found = judge_incident(Kind.CUT, 2.5, 5.5, arrivals, attempts=2, equal=True)
    assert found == Incident(Kind.CUT, 3.0, stall_ms=4500.0, resume_ms=1000.0, attempts=2, equal=True)


def test_waits_that_ended_before_do_not_count() -> None:
    found = judge_incident(Kind.RESET, 5.5, 5.5, [0.0, 5.0, 5.25, 5.75, 6.0], attempts=2, equal=True)
    assert found is not None
    assert (found.stall_ms, found.resume_ms) == (500.0, 250.0)


@pytest.mark.parametrize("healed", [2.0, 9.0])
def test_an_answer_that_had_ended_says_nothing(healed: float) -> None:
    assert judge_incident(Kind.CUT, 2.0, healed, [0.0, 1.0, 2.0], attempts=1, equal=True) is None


def test_an_answer_that_ends_during_the_cut_has_nothing_to_resume() -> None:
    found = judge_incident(Kind.CUT, 2.0, 5.0, [0.0, 1.0, 2.1], attempts=1, equal=True)
    assert found is not None
    assert found.resume_ms == 0.0

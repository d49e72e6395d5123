"""Chances, corrected by how often guesses of such chances were right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.confidence import GROUPS, Confidence, group_of
from moa_shared.drafting.reliability import BINS, ReliabilityCounts, ReliabilityCurve


def test_what_was_counted_is_what_a_chance_is_worth() -> None:
    counts = ReliabilityCounts()
    for number in range(4000):
        counts.add(0.975, right=number % 2 == 0)
    assert counts.curve().corrected(0.975) == pytest.approx(0.5, abs=0.01)
    assert ReliabilityCounts().curve().corrected(0.525) == pytest.approx(0.525)  # nothing was counted


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200), st.lists(st.floats(0, 1), min_size=2))
def test_a_greater_chance_is_never_worth_less(guesses: list[tuple[float, bool]], chances: list[float]) -> None:
    counts = ReliabilityCounts()
    for chance, right in guesses:
        counts.add(chance, right=right)
    worth = [counts.curve().corrected(chance) for chance in sorted(chances)]
    assert worth == sorted(worth)
    assert all(0 <= each <= 1 for each in worth)


@pytest.mark.parametrize("shares", [[], [0.5, 0.4], [-0.1, 0.5], [0.5, 1.1]])
def test_what_is_no_curve_is_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        ReliabilityCurve(shares)


def curve(share: float) -> ReliabilityCurve:
    return ReliabilityCurve([share] * BINS)


def test_each_depth_has_the_curve_of_its_group() -> None:
    confidence = Confidence([curve(share) for share in (0.9, 0.8, 0.7, 0.6)])
    assert [confidence.chance(-0.5, depth) for depth in (1, 2, 3, 4, 7, 8, 99)] == [0.9, 0.8, 0.8, 0.7, 0.7, 0.6, 0.6]
    assert [group_of(first) for first in GROUPS] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="curves"):
        Confidence([curve(0.9)])

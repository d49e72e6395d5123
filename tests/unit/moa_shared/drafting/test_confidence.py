"""Chances, corrected by how often guesses of such chances were right."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.confidence import Confidence, chance_of
from moa_shared.drafting.reliability import BINS, ReliabilityCounts, ReliabilityCurve
from moa_shared.drafting.written import TokenOrigin, WrittenToken, likelier


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


def test_each_origin_has_its_curve() -> None:
    shares = {TokenOrigin.DRAFTER: 0.5, TokenOrigin.BOTH: 0.9, TokenOrigin.COPY: 0.25}
    confidence = Confidence({origin: curve(share) for origin, share in shares.items()})
    for origin, share in shares.items():
        written = WrittenToken(7, math.log(0.7), origin)
        assert confidence.chance(written) == chance_of(written, confidence) == share
        assert chance_of(written, None) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="no curve for both, copy"):
        Confidence({TokenOrigin.DRAFTER: curve(0.9)})


def test_the_likelier_guess_is_written_and_agreement_makes_it_likelier_still() -> None:
    own = (7, math.log(0.5))
    assert likelier(own, None) == likelier(own, (8, math.log(0.4))) == WrittenToken(*own, TokenOrigin.DRAFTER)
    assert likelier(own, (8, math.log(0.6))) == WrittenToken(8, math.log(0.6), TokenOrigin.COPY)
    both = likelier(own, (7, math.log(0.4)))
    assert (both.token, both.origin) == (7, TokenOrigin.BOTH)
    assert math.exp(both.log_chance) == pytest.approx(0.7)
    assert likelier((7, 0.0), (7, math.log(0.4))).log_chance == 0.0

"""What stated chances are worth, and how often a companion agrees."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.device.drafter_catalog import UNKNOWN_ACCEPTANCE
from moa_shared.drafting.confidence import (
    BINS,
    MOST_EVIDENCE,
    MOST_TOKENS,
    PRIOR_EVIDENCE,
    Agreement,
    Confidence,
    LearnedConfidence,
    ReliabilityCounts,
    ReliabilityCurve,
    TokenOrigin,
    WrittenToken,
    chance_of,
    likelier,
)


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


def tell(confidence: LearnedConfidence, shift: float, count: int, seed: int = 0) -> None:
    """Tokens of a target whose choices are as likely as this shift says."""
    chance, truth = random.Random(seed), LearnedConfidence(shift, 1.0)
    for _ in range(count):
        stated = chance.random()
        confidence.learn(stated, right=chance.random() < truth.corrected(stated))


@pytest.mark.parametrize("shift", [-1.0, 0.2, 1.7, 3.5])
def test_it_learns_how_much_more_or_less_is_right_than_was_stated(shift: float) -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    tell(learned, shift, 400)
    assert learned.shift == pytest.approx(shift, abs=0.4)


def test_what_is_long_past_counts_for_less_than_what_came_last() -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    tell(learned, 3.0, 5000)
    assert learned.evidence == MOST_EVIDENCE
    tell(learned, 0.0, 1500, seed=1)
    assert learned.shift == pytest.approx(0.0, abs=0.4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.lists(st.floats(0, 1), min_size=2))
def test_of_a_companion_too_a_greater_chance_is_never_worth_less(
    tokens: list[tuple[float, bool]], chances: list[float]
) -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    for stated, right in tokens:
        learned.learn(stated, right=right)
    worth = [learned.corrected(chance) for chance in sorted(chances)]
    assert worth == sorted(worth)
    assert all(0 < each < 1 for each in worth)


def test_it_says_what_the_chance_of_a_token_is_worth() -> None:
    written = WrittenToken(3, math.log(0.5), TokenOrigin.DRAFTER)
    assert chance_of(written, LearnedConfidence(0.0, 1.0)) == pytest.approx(0.5)
    assert chance_of(written, LearnedConfidence(math.log(9.0), 1.0)) == pytest.approx(0.9)


def test_what_was_never_counted_is_as_good_as_an_unknown_drafter() -> None:
    assert Agreement().tokens_a_forward == pytest.approx(UNKNOWN_ACCEPTANCE, abs=0.05)


@pytest.mark.parametrize(("share", "measured"), [(0.90, 4.59), (0.98, 5.59)])
def test_it_foretells_what_chains_of_five_have_brought(share: float, measured: float) -> None:
    assert Agreement(1000, int(1000 * share)).tokens_a_forward == pytest.approx(measured, abs=0.2)


def test_what_is_long_past_counts_for_less() -> None:
    agreement = Agreement()
    for _ in range(10 * MOST_TOKENS):
        agreement.add(right=True)
    for _ in range(MOST_TOKENS):
        agreement.add(right=False)
    assert agreement.tokens < MOST_TOKENS
    assert agreement.right < agreement.tokens / 2

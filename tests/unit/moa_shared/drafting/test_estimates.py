"""Running estimates, a drafter's trial, what stated chances are worth, and how often a companion agrees."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import estimates
from moa_shared.tree import DraftTree


@given(st.lists(st.floats(0, 1e4), min_size=1))
def test_a_mean_stays_within_its_samples(samples: list[float]) -> None:
    estimate = estimates.Smoothed()
    for sample in samples:
        estimate.add(sample)
    assert min(samples) - 1e-6 <= estimate.mean <= max(samples) + 1e-6


@pytest.mark.parametrize("truth", [0.0, 0.35, 0.8, 1.0])
def test_an_acceptance_comes_near_the_truth(truth: float) -> None:
    estimate, chance = estimates.AcceptanceEstimate(), random.Random(1)
    for _ in range(400):
        estimate.add(chance.random() < truth)
    assert estimate.mean == pytest.approx(truth, abs=0.12)
    assert estimate.mean <= estimate.high <= 1.0


def test_what_is_not_seen_again_is_forgotten() -> None:
    estimate = estimates.AcceptanceEstimate()
    for _ in range(50):
        estimate.add(False)
    low = estimate.high
    for _ in range(300):
        estimate.fade()
    assert low < 0.1
    assert estimate.mean == pytest.approx(0.5, abs=0.05)


def test_a_tree_teaches_what_each_rank_is_worth() -> None:
    acceptance = estimates.TreeAcceptance()
    tree = DraftTree((5, 6, 7), (-1, -1, 0))
    for _ in range(100):
        acceptance.learn(tree, [6, 9])  # always the second child; below it nothing was drafted
    first, second = (acceptance.of_rank(rank).mean for rank in range(2))
    assert first < 0.05 < 0.95 < second
    assert acceptance.level.mean > 0.95
    assert acceptance.survival(tree) == pytest.approx([first, second, first**2])


RIGHT, WRONG = 7, 8


def tried(tokens: int, right: float, looked_up: float, seed: int = 0) -> estimates.DrafterTrial:
    """The trial of a drafter that is right with a chance, whatever look-up says."""
    draw, trial = random.Random(seed), estimates.DrafterTrial()
    for _ in range(tokens):
        trial.add(RIGHT, RIGHT if draw.random() < right else WRONG, RIGHT if draw.random() < looked_up else None)
    return trial


def test_one_that_is_never_right_is_dropped_after_the_first_tokens() -> None:
    decided: list[estimates.DrafterTrial] = []
    trial = estimates.DrafterTrial(decided.append)
    for index in range(estimates.TRIAL_TOKENS + 50):
        assert bool(trial.is_dropped) == (index >= estimates.TRIAL_TOKENS)
        trial.add(RIGHT, WRONG, RIGHT if index % 10 == 0 else None)
    assert (decided, trial.figures) == ([trial], "right in 0 of 200 tokens, what the text repeats in 20")


@pytest.mark.parametrize(("right", "looked_up", "is_dropped"), [
    *((right, looked_up, False) for right in (0.3, 0.6) for looked_up in (0.0, 0.2, 0.95)),  # good ones stay
    (0.03, 0.0, None),  # one as poor as look-up is tried on
    (0.0, 0.5, True),
])  # fmt: skip
def test_the_difference_to_look_up_decides(right: float, looked_up: float, is_dropped: bool | None) -> None:
    for seed in range(20):
        trial = tried(estimates.TRIAL_TOKENS, right, looked_up, seed)
        assert trial.is_dropped is is_dropped
        if not trial.is_open:  # a decision stands
            trial.add(RIGHT, RIGHT, None)
            assert (trial.is_dropped, trial.tokens) == (is_dropped, estimates.TRIAL_TOKENS)
    assert estimates.RIGHT_SHARE < 0.3  # of the poorest drafter that was measured


def test_chance_drops_nobody() -> None:
    trial = estimates.DrafterTrial()
    for index in range(estimates.TRIAL_TOKENS):
        trial.add(RIGHT, WRONG if index > 2 else RIGHT, RIGHT if 10 < index < 17 else None)  # 3 and 6 right
    assert trial.is_open
    assert not trial.lacks_tokens


def test_what_was_counted_is_what_a_chance_is_worth() -> None:
    counts = estimates.ReliabilityCounts()
    for number in range(4000):
        counts.add(0.975, right=number % 2 == 0)
    assert estimates.worth_of(0.975, counts.shares()) == pytest.approx(0.5, abs=0.01)
    assert estimates.worth_of(0.525, estimates.ReliabilityCounts().shares()) == pytest.approx(
        0.525
    )  # nothing was counted


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=200), st.lists(st.floats(0, 1), min_size=2))
def test_a_greater_chance_is_never_worth_less(guesses: list[tuple[float, bool]], chances: list[float]) -> None:
    counts, learned = estimates.ReliabilityCounts(), estimates.LearnedConfidence(0.5, estimates.PRIOR_EVIDENCE)
    for chance, right in guesses:
        counts.add(chance, right=right)
        learned.learn(chance, right=right)
    for corrected in (lambda chance: estimates.worth_of(chance, counts.shares()), learned.corrected):
        worth = [corrected(chance) for chance in sorted(chances)]
        assert worth == sorted(worth)
        assert all(0 <= each <= 1 for each in worth)


def test_each_origin_has_its_shares() -> None:
    shares = {estimates.TokenOrigin.DRAFTER: 0.5, estimates.TokenOrigin.BOTH: 0.9, estimates.TokenOrigin.COPY: 0.25}
    confidence = estimates.Confidence({origin: [share] * estimates.BINS for origin, share in shares.items()})
    for origin, share in shares.items():
        written = estimates.WrittenToken(7, math.log(0.7), origin)
        assert confidence.chance(written) == estimates.chance_of(written, confidence) == share
        assert estimates.chance_of(written, None) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="no shares for both"):
        estimates.Confidence({estimates.TokenOrigin.DRAFTER: [0.9]})


def test_the_likelier_guess_is_written_and_agreement_makes_it_likelier_still() -> None:
    own = (7, math.log(0.5))
    assert (
        estimates.likelier(own, None)
        == estimates.likelier(own, (8, math.log(0.4)))
        == estimates.WrittenToken(*own, estimates.TokenOrigin.DRAFTER)
    )
    assert estimates.likelier(own, (8, math.log(0.6))) == estimates.WrittenToken(
        8, math.log(0.6), estimates.TokenOrigin.COPY
    )
    both = estimates.likelier(own, (7, math.log(0.4)))
    assert (both.token, both.origin) == (7, estimates.TokenOrigin.BOTH)
    assert math.exp(both.log_chance) == pytest.approx(0.7)
    assert estimates.likelier((7, 0.0), (7, math.log(0.4))).log_chance == 0.0


def tell(confidence: estimates.LearnedConfidence, shift: float, count: int, seed: int = 0) -> None:
    """Tokens of a target whose choices are as likely as this shift says."""
    chance, truth = random.Random(seed), estimates.LearnedConfidence(shift, 1.0)
    for _ in range(count):
        stated = chance.random()
        confidence.learn(stated, right=chance.random() < truth.corrected(stated))


@pytest.mark.parametrize("shift", [-1.0, 0.2, 1.7, 3.5])
def test_it_learns_how_much_more_or_less_is_right_than_was_stated(shift: float) -> None:
    learned = estimates.LearnedConfidence(0.5, estimates.PRIOR_EVIDENCE)
    tell(learned, shift, 400)
    assert learned.shift == pytest.approx(shift, abs=0.4)


def test_what_is_long_past_counts_for_less_than_what_came_last() -> None:
    learned = estimates.LearnedConfidence(0.5, estimates.PRIOR_EVIDENCE)
    tell(learned, 3.0, 5000)
    assert learned.evidence == estimates.MOST_EVIDENCE
    tell(learned, 0.0, 1500, seed=1)
    assert learned.shift == pytest.approx(0.0, abs=0.4)


def test_what_is_long_past_counts_for_less() -> None:
    agreement = estimates.Agreement()
    for _ in range(10 * estimates.MOST_TOKENS):
        agreement.add(right=True)
    for _ in range(estimates.MOST_TOKENS):
        agreement.add(right=False)
    assert agreement.tokens < estimates.MOST_TOKENS
    assert agreement.right < agreement.tokens / 2

"""What it is worth to stop writing where a drafter is not sure."""

import math
import random

import pytest
from moa_shared.drafting.estimates import TokenOrigin, WrittenToken
from moa_training.evaluation.calibrate import fit_confidence, format_gates, gated
from moa_training.evaluation.subjects import StandaloneRun

SURE, UNSURE = math.log(0.975), math.log(0.325)


def run(*log_chances: float, right: int) -> StandaloneRun:
    written = tuple(WrittenToken(7, each, TokenOrigin.DRAFTER) for each in log_chances)
    return StandaloneRun(written, right, len(written))


def test_text_goes_on_while_all_of_it_is_likely() -> None:
    trusted = fit_confidence([])
    runs = [run(SURE, SURE, UNSURE, SURE, right=2), run(UNSURE, SURE, right=0), run(SURE, SURE, SURE, SURE, right=4)]
    half = gated(runs, trusted, 0.5)
    assert (half.shown, half.median_shown, half.kept, half.useful) == (2.0, 2, 1.0, 2.0)
    free = gated(runs, trusted, 0.0)
    assert (free.median_shown, free.useful) == (4, 2.0)
    assert free.shown == pytest.approx(10 / 3)
    assert free.kept == 0.6
    nothing = gated(runs, trusted, 1.0)
    assert (nothing.shown, nothing.kept, len(format_gates([half, free]).splitlines())) == (0.0, 1.0, 3)


def test_a_calibrated_drafter_keeps_what_its_chances_promise() -> None:
    chance = random.Random(0)

    def written() -> StandaloneRun:
        """Each token is right with half of the chance that the drafter states."""
        stated = [chance.choice([0.975, 0.675, 0.325]) for _ in range(12)]
        right = next((place for place, each in enumerate(stated) if chance.random() > each / 2), 12)
        return run(*map(math.log, stated), right=right)

    confidence = fit_confidence(written() for _ in range(20_000))  # what comes after a wrong token says nothing
    assert confidence.chance(WrittenToken(7, SURE, TokenOrigin.DRAFTER)) == pytest.approx(0.975 / 2, abs=0.03)
    assert confidence.chance(WrittenToken(7, SURE, TokenOrigin.COPY)) == pytest.approx(0.975)  # none was seen
    runs = [written() for _ in range(20_000)]
    sure, bold = gated(runs, confidence, 0.4), gated(runs, confidence, 0.1)
    assert sure.kept == pytest.approx(0.975 / 2, abs=0.03)
    assert bold.shown > sure.shown
    assert bold.kept < sure.kept
    assert bold.useful > sure.useful

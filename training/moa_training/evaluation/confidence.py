"""How far a drafter's standalone text can be trusted, and what it is worth to stop where it cannot. Pure.

A cut is a place of an answer where the server is lost; a run is what the drafter writes from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from statistics import median

from moa_shared.defaults import LEAST_CHANCE
from moa_shared.drafting.confidence import Confidence, TokenConfidence, chance_of
from moa_shared.drafting.learned_confidence import LearnedConfidence
from moa_shared.drafting.reliability import ReliabilityCounts
from moa_shared.drafting.written import TokenOrigin

from moa_training.evaluation.subjects import StandaloneRun

THRESHOLDS = (0.0, 0.05, 0.1, 0.2, LEAST_CHANCE, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True, slots=True)
class Gated:
    """Standalone text that goes on while the chance that all of it is right is at least `threshold`.

    Args:
        shown: tokens a cut, on average; `median_shown`: in the middle one.
        kept: share of all shown tokens that come before the first wrong one of their cut.
        useful: such tokens a cut, on average.
    """

    threshold: float
    shown: float
    median_shown: float
    kept: float
    useful: float


def fit_confidence(runs: Iterable[StandaloneRun]) -> Confidence:
    """The chances of a drafter's tokens, from runs on answers that it has not seen."""
    counts = {origin: ReliabilityCounts() for origin in TokenOrigin}
    for run in runs:
        for place, written in enumerate(run.written[: min(run.right + 1, run.judged)]):
            counts[written.origin].add(chance_of(written, None), right=place < run.right)
    return Confidence({origin: each.curve() for origin, each in counts.items()})


def fit_learned(runs: Iterable[StandaloneRun], start: LearnedConfidence) -> LearnedConfidence:
    """The confidence in a companion's text, likewise.

    Args:
        start: what is known before; it stays as it is.
    """
    learned = replace(start)
    for run in runs:
        for place, written in enumerate(run.written[: min(run.right + 1, run.judged)]):
            learned.learn(chance_of(written, None), right=place < run.right)
    return learned


def gated(runs: Sequence[StandaloneRun], confidence: TokenConfidence, threshold: float) -> Gated:
    """What of each run is shown, and kept.

    Args:
        runs: at least one.
    """
    shown = [shown_tokens(run, confidence, threshold) for run in runs]
    kept = sum(min(count, run.right) for count, run in zip(shown, runs, strict=True))
    total = sum(shown)
    return Gated(threshold, total / len(runs), median(shown), kept / total if total else 1.0, kept / len(runs))


def shown_tokens(run: StandaloneRun, confidence: TokenConfidence | None, threshold: float) -> int:
    """How many tokens that can be judged come before the chance of the run falls below the threshold.

    Args:
        confidence: None: the stated chances are taken, as a client does.
    """
    chances = (chance_of(written, confidence) for written in run.written[: run.judged])
    below = (count for count, all_right in enumerate(accumulate(chances, mul)) if all_right < threshold)
    return next(below, run.judged)


def format_gates(gates: Sequence[Gated]) -> str:
    """As a table for people."""
    lines = ["shown while the chance is  tokens a cut  middle cut  kept  right tokens a cut"]
    lines += [
        f"{each.threshold:25.2f}  {each.shown:12.2f}  {each.median_shown:10.1f}  {each.kept:4.2f}  {each.useful:18.2f}"
        for each in gates
    ]
    return "\n".join(lines)

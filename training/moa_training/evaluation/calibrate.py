"""`moa-train calibrate`: how far a drafter's standalone text can be trusted, and what it brings to stop in time.

A cut is a place of an answer where the server is lost; a run is what the drafter writes from there on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

from moa_kernels import set_threads
from moa_shared.drafter.companion import kind_confidence
from moa_shared.drafting.estimates import Confidence, LearnedConfidence, ReliabilityCounts, TokenOrigin, chance_of
from moa_shared.errors import ConfigError, DataError
from moa_shared.models import resolve
from moa_shared.models.files import asked_sampling
from moa_shared.programs.progress import Progress
from moa_shared.protocol.messages import THIN
from moa_shared.sampling.settings import LEAST_CHANCE

from moa_training.data.text import read_questions
from moa_training.evaluation.evaluation import answered, companion_named, load_subject
from moa_training.evaluation.standalone import shown_tokens
from moa_training.evaluation.subjects import StandaloneRun, WritingLimit
from moa_training.settings import CalibrationOptions

EVERY = 8  # tokens of an answer from one cut to the next
LENGTH = 48  # tokens of a run: three times what is mostly shown of a companion that is the target in another format
LONGEST_PROMPT = 512
THRESHOLDS = (0.0, 0.05, 0.1, 0.2, LEAST_CHANCE, 0.5, 0.6, 0.7, 0.8)


@dataclass(frozen=True, slots=True)
class Gated:
    """Standalone text that goes on while the chance that all of it is right is at least `threshold`."""

    threshold: float
    shown: float  # tokens a cut, on average
    median_shown: float
    kept: float  # share of all shown tokens that come before the first wrong one of their cut
    useful: float  # such tokens a cut, on average


@dataclass(frozen=True, slots=True)
class Calibrated:
    confidence: Confidence | LearnedConfidence
    fingerprint: str  # of the checkpoint, or of the companion
    target: str  # the target's
    questions: int
    cuts: int
    gates: Sequence[Gated]  # on the questions of even number, with the confidence of those of odd number


def calibrate(name: str, questions_path: Path, options: CalibrationOptions, progress: Progress) -> Calibrated:
    set_threads(1)
    files = resolve(options.target, progress=progress)
    sampling = asked_sampling(options.temperature, files)
    subject = load_subject(name, files, options.execution, sampling, progress)
    if subject.reads_last_hidden:
        raise ConfigError("This drafter is only for comparison: no device writes with it.")
    companion = companion_named(name, progress)
    fit = fit_confidence if companion is None else partial(fit_learned, start=kind_confidence(companion, files))
    questions, _ = read_questions(questions_path, files, options.limit, LONGEST_PROMPT)
    thin = THIN if options.thin else None
    runs: list[list[StandaloneRun]] = []
    with progress.task("writing after cuts", len(questions)) as bar:
        for question, answer in answered(subject, files, questions, options.answer_tokens, sampling):
            cuts = range(EVERY, len(answer), EVERY)
            if cuts:
                runs.append(subject.runs(question.prompt, answer, cuts, WritingLimit(LENGTH), thin=thin))
            bar.advance(1)
    if len(runs) < 2:
        raise DataError(f"Fewer than two answers have more than {EVERY} tokens.", hint="Give more questions.")
    of_odd = fit(run for each in runs[1::2] for run in each)
    of_even = [run for each in runs[::2] for run in each]
    return Calibrated(
        fit(run for each in runs for run in each),
        subject.fingerprint,
        files.fingerprint,
        len(runs),
        sum(map(len, runs)),
        [gated(of_even, of_odd, threshold) for threshold in THRESHOLDS],
    )


def fit_confidence(runs: Iterable[StandaloneRun]) -> Confidence:
    """The chances of a drafter's tokens, from runs on answers that it has not seen."""
    counts = {origin: ReliabilityCounts() for origin in TokenOrigin}
    for run in runs:
        for place, written in enumerate(run.written[: min(run.right + 1, run.judged)]):
            counts[written.origin].add(chance_of(written, None), right=place < run.right)
    return Confidence({origin: each.shares() for origin, each in counts.items()})


def fit_learned(runs: Iterable[StandaloneRun], start: LearnedConfidence) -> LearnedConfidence:
    """The confidence in a companion's text, likewise, from what is known before."""
    learned = replace(start)
    for run in runs:
        for place, written in enumerate(run.written[: min(run.right + 1, run.judged)]):
            learned.learn(chance_of(written, None), right=place < run.right)
    return learned


def gated(runs: Sequence[StandaloneRun], confidence: Confidence | LearnedConfidence, threshold: float) -> Gated:
    """What of each run, of which there are some, is shown and kept."""
    shown = [shown_tokens(run, confidence, threshold) for run in runs]
    kept = sum(min(count, run.right) for count, run in zip(shown, runs, strict=True))
    total = sum(shown)
    return Gated(threshold, total / len(runs), median(shown), kept / total if total else 1.0, kept / len(runs))


def format_gates(gates: Sequence[Gated]) -> str:
    lines = ["shown while the chance is  tokens a cut  middle cut  kept  right tokens a cut"]
    lines += [
        f"{each.threshold:25.2f}  {each.shown:12.2f}  {each.median_shown:10.1f}  {each.kept:4.2f}  {each.useful:18.2f}"
        for each in gates
    ]
    return "\n".join(lines)

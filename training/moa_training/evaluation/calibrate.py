"""`moa-train calibrate`: measures how far a drafter's standalone text can be trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from moa_kernels import set_threads
from moa_shared.drafter.companion.records import kind_confidence
from moa_shared.drafting.confidence import Confidence
from moa_shared.drafting.learned_confidence import LearnedConfidence
from moa_shared.errors import ConfigError, DataError
from moa_shared.models import ModelFiles, WeightReader, resolve
from moa_shared.models.sources.generation import OWN_SETTINGS, asked_sampling
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8
from moa_shared.protocol.thin_memory import THIN
from moa_shared.sampling.settings import Sampling

from moa_training.data.questions import read_questions, stop_tokens
from moa_training.evaluation.checkpoints import load_fitting_checkpoint
from moa_training.evaluation.companion_subject import CompanionSubject, companion_named, load_subject
from moa_training.evaluation.confidence import THRESHOLDS, Gated, fit_confidence, fit_learned, gated
from moa_training.evaluation.subjects import DrafterSubject, StandaloneRun, WritingLimit
from moa_training.teacher.answers import answer_questions
from moa_training.teacher.target_reader import load_reader

EVERY = 8  # tokens of an answer from one cut to the next
LENGTH = 48  # tokens of a run: three times what is mostly shown of a companion that is the target in another format
LONGEST_PROMPT = 512

Fit = Callable[[Iterable[StandaloneRun]], Confidence | LearnedConfidence]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A drafter's confidence, and what gating by it brings.

    Args:
        fingerprint: of the checkpoint, or of the companion.
        target: the target's.
        gates: on the questions of even number, with the confidence of those of odd number.
    """

    confidence: Confidence | LearnedConfidence
    fingerprint: str
    target: str
    questions: int
    cuts: int
    gates: Sequence[Gated]


@dataclass(frozen=True, slots=True)
class CalibrationOptions:
    """What is measured.

    Args:
        limit: questions of each category; None: all.
        answer_tokens: where the target's answers are cut off.
        execution: level of the target.
        thin: the device holds the rows that it gets while it drafts nothing and the link holds, not all.
        temperature: as of `asked_sampling`; by default answers are sampled as chats are.
    """

    target: str = "default"
    limit: int | None = None
    answer_tokens: int = 128
    execution: str = INT8
    thin: bool = False
    temperature: str = OWN_SETTINGS


def calibrate(name: str, questions_path: Path, options: CalibrationOptions, progress: Progress) -> Calibrated:
    """Measures a checkpoint, or a companion, on questions whose answers it has not seen.

    Raises:
        ConfigError: a drafter that reads the target's last hidden states, which no server sends.
        DataError: fewer than two questions with answers of more than EVERY tokens.
        MoaError: a model, a checkpoint or questions cannot be read.
    """
    set_threads(1)
    files = resolve(options.target, progress=progress)
    companion, sampling = companion_named(name, progress), asked_sampling(options.temperature, files)
    if companion is None:
        subject, fingerprint, fit = _checkpoint(name, files, options, sampling, progress)
    else:
        subject, fingerprint, fit = _companion(companion, files, options, sampling, progress)
    questions, _ = read_questions(questions_path, files, options.limit, LONGEST_PROMPT)
    answered = answer_questions(questions, files, subject.reader, options.answer_tokens, progress, sampling=sampling)
    runs: list[list[StandaloneRun]] = []
    with progress.task("writing after cuts", len(answered)) as bar:
        for question in answered:
            cuts = range(EVERY, len(question.answer), EVERY)
            if cuts:
                thin = THIN if options.thin else None
                runs.append(subject.runs(question.prompt, question.answer, cuts, WritingLimit(LENGTH), thin=thin))
            bar.advance(1)
    if len(runs) < 2:
        raise DataError(f"Fewer than two answers have more than {EVERY} tokens.", hint="Give more questions.")
    of_odd = fit(run for each in runs[1::2] for run in each)
    of_even = [run for each in runs[::2] for run in each]
    return Calibrated(
        fit(run for each in runs for run in each),
        fingerprint,
        files.fingerprint,
        len(runs),
        sum(map(len, runs)),
        [gated(of_even, of_odd, threshold) for threshold in THRESHOLDS],
    )


def _checkpoint(
    name: str, files: ModelFiles, options: CalibrationOptions, sampling: Sampling, progress: Progress
) -> tuple[DrafterSubject, str, Fit]:
    """What is under test, its fingerprint, and how its confidence is fitted."""
    checkpoint = load_fitting_checkpoint(name, files)
    if checkpoint.config.reads_last_hidden:
        raise ConfigError("This drafter is only for comparison: no device writes with it.")
    config = checkpoint.config
    reader = load_reader(files, config.reused_layers, options.execution, progress, config.state_entries)
    subject = DrafterSubject(checkpoint, reader, WeightReader(files), INT8, stop_tokens(files), sampling=sampling)
    return subject, checkpoint.fingerprint, fit_confidence


def _companion(
    companion: ModelFiles, files: ModelFiles, options: CalibrationOptions, sampling: Sampling, progress: Progress
) -> tuple[DrafterSubject, str, Fit]:
    reader = load_reader(files, 0, options.execution, progress)
    loaded = load_subject(companion, files, INT8, progress)
    subject = CompanionSubject(loaded, reader, stop_tokens(files), sampling)
    return subject, companion.fingerprint, partial(fit_learned, start=kind_confidence(companion, files))

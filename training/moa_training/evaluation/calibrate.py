"""`moa-train calibrate`: measures how far a drafter's standalone text can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_kernels import set_threads
from moa_shared.drafting.confidence import Confidence
from moa_shared.errors import ConfigError, DataError
from moa_shared.models import WeightReader, resolve
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8
from moa_shared.protocol.thin_memory import THIN

from moa_training.data.questions import read_questions, stop_tokens
from moa_training.evaluation.checkpoints import load_fitting_checkpoint
from moa_training.evaluation.confidence import THRESHOLDS, Gated, fit_confidence, gated
from moa_training.evaluation.subjects import DrafterSubject, StandaloneRun, WritingLimit
from moa_training.teacher.answers import answer_questions
from moa_training.teacher.target_reader import load_reader

EVERY = 8  # tokens of an answer from one cut to the next
LENGTH = 24  # tokens of a run
LONGEST_PROMPT = 512


@dataclass(frozen=True, slots=True)
class Calibrated:
    """A drafter's confidence, and what gating by it brings.

    Args:
        fingerprint: of the checkpoint.
        gates: on the questions of even number, with the confidence of those of odd number.
    """

    confidence: Confidence
    fingerprint: str
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
    """

    target: str = "default"
    limit: int | None = None
    answer_tokens: int = 128
    execution: str = INT8
    thin: bool = False


def calibrate(name: str, questions_path: Path, options: CalibrationOptions, progress: Progress) -> Calibrated:
    """Measures a checkpoint on questions whose answers it has not seen.

    Raises:
        ConfigError: a drafter that reads the target's last hidden states, which no server sends.
        DataError: fewer than two questions with answers of more than EVERY tokens.
        MoaError: a model, a checkpoint or questions cannot be read.
    """
    set_threads(1)
    files = resolve(options.target, progress=progress)
    checkpoint = load_fitting_checkpoint(name, files)
    if checkpoint.config.reads_last_hidden:
        raise ConfigError("This drafter is only for comparison: no device writes with it.")
    questions, _ = read_questions(questions_path, files, options.limit, LONGEST_PROMPT)
    config = checkpoint.config
    reader = load_reader(files, config.reused_layers, options.execution, progress, config.state_entries)
    answered = answer_questions(questions, files, reader, options.answer_tokens, progress)
    subject = DrafterSubject(checkpoint, reader, WeightReader(files), INT8, stop_tokens(files))
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
    of_odd = fit_confidence(run for each in runs[1::2] for run in each)
    of_even = [run for each in runs[::2] for run in each]
    return Calibrated(
        fit_confidence(run for each in runs for run in each),
        checkpoint.fingerprint,
        len(runs),
        sum(map(len, runs)),
        [gated(of_even, of_odd, threshold) for threshold in THRESHOLDS],
    )

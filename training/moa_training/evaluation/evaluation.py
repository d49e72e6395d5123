"""`moa-train evaluate`: a checkpoint on questions, as a table and as JSON.

Questions are measured in parts, here or on the workers of a cluster. Parts that are finished lie in the cache folder
until all are, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from moa_shared.drafter.checkpoint.statistics import confidence_for
from moa_shared.drafter.companion.records import confidence_beside
from moa_shared.drafting.confidence import Confidence
from moa_shared.drafting.learned_confidence import LearnedConfidence
from moa_shared.errors import DataError
from moa_shared.models import resolve
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.progress import Progress

from moa_training.cluster.finished import FinishedParts
from moa_training.cluster.parts import plan_parts
from moa_training.cluster.run import InProcess, Runner, run_parts
from moa_training.data.questions import read_questions
from moa_training.evaluation.checkpoints import LOOKUP, NONE, find_checkpoint, load_fitting_checkpoint
from moa_training.evaluation.companion_subject import PREFIX, companion_named
from moa_training.evaluation.measuring.job import CUTS, SHARES, EvaluationJob, EvaluationOptions, question_item
from moa_training.evaluation.measuring.measures import QuestionMeasures, add_up
from moa_training.evaluation.results import Evaluation
from moa_training.evaluation.standalone import StandaloneQuality
from moa_training.teacher.answers import ANSWERED_TOGETHER
from moa_training.teacher.same_target import SameTarget, name_anywhere


def evaluate(
    name: str, questions_path: Path, options: EvaluationOptions, progress: Progress, runner: Runner | None = None
) -> Evaluation:
    """Acceptance of the checkpoint `name` on the questions.

    Args:
        runner: who measures; None: this process.

    Raises:
        DataError: no questions, or none with a result where results are to be checked.
    """
    files = resolve(options.target, progress=progress)
    fingerprint = ""
    confidence: Confidence | LearnedConfidence | None = None
    companion = companion_named(name, progress)
    if companion is not None:
        fingerprint, confidence = companion.fingerprint, confidence_beside(companion, files, cache_root())
    elif name not in (LOOKUP, NONE):
        fingerprint = load_fitting_checkpoint(name, files).fingerprint
        confidence = confidence_for(fingerprint, find_checkpoint(name, files))
    questions, left_out = read_questions(questions_path, files, options.limit, options.longest_prompt)
    if options.task_tokens and all(question.result is None for question in questions):
        raise DataError(
            "No question has a result to check.",
            hint='Leave task accuracy out, or ask questions with "final_answer" or a reference that ends in "#### 18".',
        )
    target = SameTarget(name_anywhere(options.target), files.fingerprint)
    anywhere = PREFIX + name_anywhere(name.removeprefix(PREFIX)) if companion is not None else name_anywhere(name)
    job = EvaluationJob(target, anywhere, fingerprint, confidence, options)
    basis = [files.fingerprint, fingerprint or name, _said_of(confidence), options.basis()]
    parts = plan_parts(basis, [question_item(question) for question in questions], ANSWERED_TOGETHER)
    plan = hashlib.sha256(json.dumps([part.name for part in parts]).encode()).hexdigest()[:32]
    finished = FinishedParts(cache_root() / "evaluations" / plan)
    results = run_parts(job, parts, finished, runner or InProcess(progress), "measuring questions", progress)
    measured = [QuestionMeasures.from_json(each) for _, result in results for each in json.loads(result)]
    finished.clear()
    return add_up(_nothing(name, files.target_id, len(questions), left_out, options), measured)


def _said_of(confidence: Confidence | LearnedConfidence | None) -> object:
    """What a confidence says, as JSON."""
    if isinstance(confidence, LearnedConfidence):
        return [confidence.shift, confidence.evidence]
    return {} if confidence is None else {str(origin): curve.shares for origin, curve in confidence.curves.items()}


def _nothing(name: str, target_id: str, questions: int, left_out: int, options: EvaluationOptions) -> Evaluation:
    """An evaluation before anything is added up."""
    result = Evaluation(name, target_id, questions, left_out, {})
    if name != NONE and options.standalone_tokens:
        result.standalone.update({cut: StandaloneQuality() for cut in CUTS})
        result.shares.update({share: StandaloneQuality() for share in SHARES})
    if name != NONE and options.task_tokens:
        result.task.update({share: {} for share in SHARES})
    return result

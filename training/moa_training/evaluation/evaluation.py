"""`moa-train evaluate`: a drafter on questions.

What was measured lies in the cache folder until all questions are, so that the same command continues where it was
stopped. Invariant: numbers survive the folder unchanged, and are added up in the order of the questions.
"""

import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from moa_kernels import set_threads
from moa_shared.drafter.checkpoint import SHIPPED_DRAFTERS, Checkpoint, confidence_for, load_checkpoint, require_shipped
from moa_shared.drafter.companion import confidence_beside, find_companion, load_companion
from moa_shared.drafter.published import find_drafter
from moa_shared.drafting.drafts import TreeShape
from moa_shared.drafting.estimates import Confidence, LearnedConfidence, TokenConfidence
from moa_shared.errors import DataError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.models.files import asked_sampling, end_of_text
from moa_shared.models.storage.cache import cache_root
from moa_shared.programs.atomic import whole_file
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import Sampling
from pydantic import TypeAdapter

from moa_training.data.text import TaskQuestion, read_questions
from moa_training.evaluation.standalone import StandaloneQuality, TaskAccuracy, standalone_quality, task_accuracy
from moa_training.evaluation.subjects import (
    Acceptance,
    CompanionSubject,
    DrafterSubject,
    DraftShape,
    LookupSubject,
    Subject,
    WritingLimit,
)
from moa_training.settings import EvaluationOptions
from moa_training.teacher.target_reader import TOGETHER, load_reader, sampling_for

LOOKUP, NONE = "lookup", "none"  # prompt look-up and plain steps, which need no file
PREFIX = "companion:"  # in place of a checkpoint's name


def load_fitting_checkpoint(path: Path, files: ModelFiles) -> Checkpoint:
    checkpoint = load_checkpoint(path)
    made_for = checkpoint.config.target_fingerprint
    if made_for and made_for != files.fingerprint:
        raise MismatchError(
            f"The drafter {path} was made for another target ({made_for[:12]}, this one is {files.fingerprint[:12]}).",
            hint="Name its target with --target.",
        )
    return checkpoint


def companion_named(name: str, progress: Progress) -> ModelFiles | None:
    """The companion that `companion:SPEC` means; None: it is another kind of subject."""
    return find_companion(name.removeprefix(PREFIX), progress=progress) if name.startswith(PREFIX) else None


def stop_tokens(files: ModelFiles) -> set[int]:
    return set(end_of_text(files, load_tokenizer(files).eos_token_id))


def load_subject(
    name: str,
    files: ModelFiles,
    execution: str,
    sampling: Sampling,
    progress: Progress,
    *,
    weights: str = "int8",
    guarded: bool = True,
) -> Subject:
    """A checkpoint or companion with the target `files`, prompt look-up, or plain steps."""
    stop_ids, companion = stop_tokens(files), companion_named(name, progress)
    if name in (LOOKUP, NONE):
        return LookupSubject(load_reader(files, 0, execution, progress), stop_ids)
    if companion is not None:
        loaded = load_companion(companion, files, progress=progress, weights=weights)
        reader = load_reader(files, 0, execution, progress)
        subject: DrafterSubject = CompanionSubject(loaded, reader, stop_ids, sampling)
        subject.confidence = confidence_beside(companion, files, cache_root())
        return subject
    if name in SHIPPED_DRAFTERS:
        hint = "Train one with moa-train fit."
        path = require_shipped(files.fingerprint, files.target_id, name, hint=hint)
    else:
        path = find_drafter(name, files)
    checkpoint = load_fitting_checkpoint(path, files)
    config = checkpoint.config
    reader = load_reader(files, config.reused_layers, execution, progress, config.state_entries)
    subject = DrafterSubject(
        checkpoint, reader, WeightReader(files), weights, stop_ids, guarded=guarded, sampling=sampling
    )
    subject.confidence = confidence_for(checkpoint.fingerprint, path)
    return subject


CUTS = (8, 32, 64)  # tokens of an answer
SHARES = tuple(f"{tenth / 10:.1f}" for tenth in range(10))  # of an answer
_NO_BASIS = ("target", "limit", "prompt_tokens", "threads")  # which no question's measures depend on


@dataclass(slots=True)
class QuestionMeasures:
    category: str
    acceptance: dict[str, Acceptance]  # by the name of a draft's shape
    # by the number of answer tokens before the cut; answers that are shorter have none
    standalone: dict[int, StandaloneQuality] = field(default_factory=dict)
    shares: dict[str, StandaloneQuality] = field(default_factory=dict)  # by the share of the answer before the cut
    cold: StandaloneQuality | None = None  # without any memory
    # by the share of the answer before the cut; empty where there is no result to check
    task: dict[str, TaskAccuracy] = field(default_factory=dict)


def evaluate(name: str, questions_path: Path, options: EvaluationOptions, progress: Progress) -> dict[str, Any]:
    """What `--json` writes: checkpoint, target, questions, left_out (rows that were malformed or too long),
    acceptance_length (of the tree), and `shapes`: for each its acceptance_length, forwards, draft_ms (mean time of a
    draft), accepted (verifications by number of accepted drafts), by_position (share accepted at each depth where the
    one before was) and by_category (acceptance_length); `standalone`, `shares`: for each cut the questions and the
    means that `StandaloneQuality` describes; `all_shares`, `cold` (a device that begins without its server): the same
    of one (null: not measured); and `task`: for each share and category the questions and the shares that
    `TaskAccuracy` describes.
    """
    set_threads(options.threads)
    if options.threads:
        torch.set_num_threads(options.threads)
    files = resolve(options.target, progress=progress)
    sampling = asked_sampling(options.temperature, files)
    subject = load_subject(
        name, files, options.execution, sampling, progress,
        weights=options.drafter_weights, guarded=not options.unguarded,
    )  # fmt: skip
    questions, left_out = read_questions(questions_path, files, options.limit, options.prompt_tokens)
    if options.task_tokens and all(question.result is None for question in questions):
        raise DataError(
            "No question has a result to check.",
            hint='Leave task accuracy out, or ask questions with "final_answer" or a reference that ends in "#### 18".',
        )
    measuring = Measuring(subject, name, files, options, sampling)
    asked = [[question.category, question.prompt, str(question.result)] for question in questions]
    basis = [files.fingerprint, subject.fingerprint or name, _said_of(subject.confidence), asked]
    basis += [{key: value for key, value in options.json_values().items() if key not in _NO_BASIS}]
    folder = cache_root() / "evaluations" / hashlib.sha256(json.dumps(basis).encode()).hexdigest()[:32]
    measured: list[QuestionMeasures] = []
    kept = TypeAdapter(list[QuestionMeasures])
    with progress.task("measuring questions", len(questions)) as bar:
        for start in range(0, len(questions), TOGETHER):
            path = folder / f"{start}.json"
            if not path.is_file():
                part = measuring.measure(questions[start : start + TOGETHER])
                with whole_file(path, several_writers=True) as partial:
                    partial.write_bytes(kept.dump_json(part))
            measured += kept.validate_json(path.read_bytes())
            bar.reach(len(measured))
    shutil.rmtree(folder, ignore_errors=True)
    counts = {"checkpoint": name, "target": files.target_id, "questions": len(questions), "left_out": left_out}
    return counts | added_up(measured, bool(options.standalone) and name != NONE)


def _said_of(confidence: TokenConfidence | None) -> object:
    if isinstance(confidence, LearnedConfidence):
        return [confidence.shift, confidence.evidence]
    shares = confidence.shares if isinstance(confidence, Confidence) else {}
    return {str(origin): each for origin, each in shares.items()}


def answered(
    subject: Subject, files: ModelFiles, questions: Sequence[TaskQuestion], tokens: int, sampling: Sampling
) -> Iterator[tuple[TaskQuestion, list[int]]]:
    """The questions with the target's own answers, of at most so many tokens."""
    stop_ids = stop_tokens(files)
    for start in range(0, len(questions), TOGETHER):
        together = questions[start : start + TOGETHER]
        prompts = [question.prompt for question in together]
        answers = subject.reader.answers(prompts, files, tokens, stop_ids, sampling)
        yield from zip(together, answers, strict=True)


class Measuring:
    def __init__(
        self, subject: Subject, name: str, files: ModelFiles, options: EvaluationOptions, sampling: Sampling
    ) -> None:
        self._subject, self._files, self._options, self._sampling = subject, files, options, sampling
        self._answered = partial(answered, subject, files, sampling=sampling)
        self._writes = name != NONE
        self._decode = load_tokenizer(files).decode
        if name in (LOOKUP, NONE):
            self._shapes = [DraftShape(options.chain if name == LOOKUP else 0)]
        else:
            tree = TreeShape(options.depth, options.breadth, options.nodes)
            self._shapes = [DraftShape(options.chain), DraftShape(options.nodes, tree)]

    def measure(self, questions: Sequence[TaskQuestion]) -> list[QuestionMeasures]:
        options = self._options
        checked = [question for question in questions if question.result is not None and options.task_tokens]
        whole = iter(self._answered(checked, options.task_tokens) if self._writes else ())
        measured = []
        for question, answer in self._answered(questions, options.answer_tokens):
            accepted = self._subject.replay(question.prompt, answer, self._shapes)
            shapes = {shape.name: each for shape, each in zip(self._shapes, accepted, strict=True)}
            measures = QuestionMeasures(question.category, shapes)
            if options.standalone and self._writes:
                self._add_standalone(question.prompt, answer, measures)
            if question.result is not None and (checking := next(whole, None)) is not None:
                measures.task = self._check_result(question, checking[1])
            measured.append(measures)
        return measured

    def _add_standalone(self, prompt: Sequence[int], answer: Sequence[int], measures: QuestionMeasures) -> None:
        """Standalone quality after all cuts; of a drafter without any memory too."""
        whole = len(answer)
        cuts = [cut for cut in CUTS if cut < whole]
        shares = {share: cut_at(share, whole) for share in SHARES}
        places = sorted({*cuts, *shares.values()})
        measured = dict(zip(places, self._qualities(prompt, answer, places), strict=True))
        measures.standalone = {cut: measured[cut] for cut in cuts}
        measures.shares = {share: measured[cut] for share, cut in shares.items()}
        if self._subject.reads_memory:
            (measures.cold,) = self._qualities(prompt, answer, [0], memory=False)

    def _qualities(
        self, prompt: Sequence[int], answer: Sequence[int], cuts: Sequence[int], *, memory: bool = True
    ) -> list[StandaloneQuality]:
        subject, length, sampling = self._subject, self._options.standalone, sampling_for(self._sampling, prompt)
        runs = subject.runs(prompt, answer, cuts, WritingLimit(length), memory=memory)
        return [
            standalone_quality(run, subject.reader, prompt, answer, cut, length, subject.confidence, sampling)
            for cut, run in zip(cuts, runs, strict=True)
        ]

    def _check_result(self, question: TaskQuestion, answer: Sequence[int]) -> dict[str, TaskAccuracy]:
        expected = question.result
        if expected is None:
            return {}
        room = WritingLimit(self._options.task_tokens, self._options.task_tokens)
        cuts, stop_ids = [cut_at(share, len(answer)) for share in SHARES], stop_tokens(self._files)
        runs = self._subject.runs(question.prompt, answer, cuts, room)
        return {
            share: task_accuracy(expected, answer, cut, run.tokens, self._decode, stop_ids)
            for share, cut, run in zip(SHARES, cuts, runs, strict=True)
        }


def cut_at(share: str, whole: int) -> int:
    """Tokens of an answer of `whole` tokens that are its first share."""
    return int(float(share) * whole + 1e-6)


def added_up(measured: Sequence[QuestionMeasures], writes: bool) -> dict[str, Any]:
    shapes: dict[str, dict[str, Any]] = {}
    for name in measured[0].acceptance:
        total, categories = Acceptance(), dict[str, Acceptance]()
        for question in measured:
            for counts in (total, categories.setdefault(question.category, Acceptance())):
                counts.merge(question.acceptance[name])
        shapes[name] = {
            "acceptance_length": round(total.length, 4),
            "forwards": total.forwards,
            "draft_ms": round(total.draft_ms, 3),
            "accepted": total.accepted,
            "by_position": [round(share, 4) for share in total.by_position],
            "by_category": {category: round(part.length, 4) for category, part in categories.items()},
        }
    standalone = {cut: _merged(each.standalone[cut] for each in measured if cut in each.standalone) for cut in CUTS}
    shares = {share: _merged(each.shares[share] for each in measured if each.shares) for share in SHARES}
    colds = [each.cold for each in measured if each.cold is not None]
    task: dict[str, dict[str, TaskAccuracy]] = {}
    for question in measured:
        for share, accuracy in question.task.items():
            task.setdefault(share, {}).setdefault(question.category, TaskAccuracy()).merge(accuracy)
    return {
        "acceptance_length": shapes[list(shapes)[-1]]["acceptance_length"],
        "shapes": shapes,
        "standalone": {str(cut): _quality_json(part) for cut, part in standalone.items()} if writes else {},
        "shares": {share: _quality_json(part) for share, part in shares.items()} if writes else {},
        "all_shares": _quality_json(_merged(shares.values())) if writes else None,
        "cold": _quality_json(_merged(colds)) if colds else None,
        "task": {
            share: {category: {"questions": part.questions, **_rounded(part.shares)} for category, part in each.items()}
            for share, each in task.items()
        },
    }


def _merged(parts: Iterable[StandaloneQuality]) -> StandaloneQuality:
    total = StandaloneQuality()
    for part in parts:
        total.merge(part)
    return total


def _quality_json(part: StandaloneQuality) -> dict[str, Any]:
    return {"questions": part.questions, **_rounded(part.means)}


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in values.items()}

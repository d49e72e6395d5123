"""`moa-train evaluate`: a checkpoint on questions, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from moa_kernels import set_threads
from moa_shared.drafter import Checkpoint, load_checkpoint
from moa_shared.drafter.checkpoint.confidence_file import confidence_for
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, checkpoint_path, require_shipped_drafter
from moa_shared.drafting.confidence import Confidence
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import DataError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8

from moa_training.data.questions import Question, read_questions, stop_tokens
from moa_training.evaluation.acceptance import Acceptance, Shape
from moa_training.evaluation.results import Evaluation, TaskResults
from moa_training.evaluation.standalone import StandaloneQuality, standalone_quality
from moa_training.evaluation.subjects import DrafterSubject, LookupSubject, Room, Subject
from moa_training.evaluation.task_accuracy import TaskAccuracy, task_accuracy
from moa_training.teacher.answers import AnsweredQuestion, answer_questions
from moa_training.teacher.target_reader import load_reader

LOOKUP, NONE = "lookup", "none"
CUTS = (8, 32, 64)  # tokens of an answer
SHARES = tuple(f"{tenth / 10:.1f}" for tenth in range(10))  # of an answer


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """What is measured.

    Args:
        limit: questions of each category; None: all.
        answer_tokens: where the target's answers are cut off.
        chain: drafts of the chain.
        tree: of the dynamic tree.
        more_nodes: sizes of further trees of the same depth and breadth.
        copies: trees merge what the conversation suggests.
        longest_prompt: questions with longer prompts are left out.
        execution: level of the target: int8 (the kernels), float32 or bf16 (torch).
        drafter_weights: of both halves of the drafter: int8, int4 or float32.
        standalone_tokens: written after each cut without the server; 0: not measured.
        guarded: standalone text repeats no run of tokens, as in the client.
        task_tokens: longest answer whose result is checked, the part before the cut included; 0: not measured. A
            result needs a whole answer, so this is the most expensive measure.
    """

    target: str = "default"
    limit: int | None = None
    answer_tokens: int = 128
    chain: int = 5
    tree: TreeShape = TreeShape(depth=5, breadth=6, nodes=24)  # noqa: RUF009
    longest_prompt: int = 1024
    execution: str = INT8
    drafter_weights: str = "int8"
    threads: int = 1
    standalone_tokens: int = 96
    more_nodes: tuple[int, ...] = ()
    copies: bool = False
    task_tokens: int = 0
    guarded: bool = True

    @property
    def trees(self) -> list[TreeShape]:
        """The trees; the last one is the tree whose acceptance length counts."""
        return [*(replace(self.tree, nodes=nodes) for nodes in self.more_nodes), self.tree]


def find_checkpoint(name: str, files: ModelFiles) -> Path:
    """The file that a user means: a path, a folder that holds a drafter, or one of SHIPPED_DRAFTERS.

    Raises:
        NotFoundError: no such checkpoint.
    """
    if name in SHIPPED_DRAFTERS:
        hint = "Train one with moa-train fit."
        return require_shipped_drafter(files.fingerprint, files.target_id, name, hint=hint)
    return checkpoint_path(Path(name))


def load_fitting_checkpoint(name: str, files: ModelFiles) -> Checkpoint:
    """The checkpoint; raises MismatchError for a drafter of another target."""
    path = find_checkpoint(name, files)
    checkpoint = load_checkpoint(path)
    made_for = checkpoint.config.target_fingerprint
    if made_for and made_for != files.fingerprint:
        raise MismatchError(
            f"The drafter {path} was made for another target ({made_for[:12]}, this one is {files.fingerprint[:12]}).",
            hint="Name its target with --target.",
        )
    return checkpoint


def evaluate(name: str, questions_path: Path, options: EvaluationOptions, progress: Progress) -> Evaluation:
    """Acceptance of the checkpoint `name` on the questions.

    Raises:
        DataError: no questions, or none with a result where results are to be checked.
    """
    set_threads(options.threads)
    if options.threads:
        torch.set_num_threads(options.threads)
    files = resolve(options.target, progress=progress)
    checkpoint = None if name in (LOOKUP, NONE) else load_fitting_checkpoint(name, files)
    questions, left_out = read_questions(questions_path, files, options.limit, options.longest_prompt)
    if options.task_tokens and all(question.result is None for question in questions):
        raise DataError(
            "No question has a result to check.",
            hint='Leave task accuracy out, or ask questions with "final_answer" or a reference that ends in "#### 18".',
        )
    reused = 0 if checkpoint is None else checkpoint.config.reused_layers
    reader = load_reader(files, reused, options.execution, progress)
    answered = answer_questions(questions, files, reader, options.answer_tokens, progress)
    shapes = [Shape(0)]  # plain steps
    stop_ids = stop_tokens(files)
    subject: Subject = LookupSubject(reader, stop_ids)
    if checkpoint is not None:
        subject = DrafterSubject(
            checkpoint, reader, WeightReader(files), options.drafter_weights, stop_ids, guarded=options.guarded
        )
        shapes = [Shape(options.chain), *(Shape(tree.nodes, tree, options.copies) for tree in options.trees)]
    elif name == LOOKUP:
        shapes = [Shape(options.chain)]
    result = Evaluation(
        name, files.target_id, len(questions), left_out, _replay_all(subject, answered, shapes, progress)
    )
    if options.standalone_tokens and name != NONE:
        confidence = None
        if checkpoint is not None:
            confidence = confidence_for(checkpoint.fingerprint, find_checkpoint(name, files))
        standalone = _Standalone(subject, options.standalone_tokens, confidence)
        with progress.task("standalone text", len(answered)) as bar:
            for question in answered:
                standalone.add(question, cold=checkpoint is not None)
                bar.advance(1)
        result = replace(result, standalone=standalone.cuts, shares=standalone.shares, cold=standalone.cold)
    if options.task_tokens and name != NONE:
        result = replace(result, task=_check_results(subject, questions, files, options, progress))
    return result


def _replay_all(
    subject: Subject, answered: Sequence[AnsweredQuestion], shapes: Sequence[Shape], progress: Progress
) -> dict[str, dict[str, Acceptance]]:
    results: dict[str, dict[str, Acceptance]] = {shape.name: {} for shape in shapes}
    with progress.task("replaying verifications", len(answered)) as bar:
        for question in answered:
            for shape, acceptance in zip(shapes, subject.replay(question.prompt, question.answer, shapes), strict=True):
                results[shape.name].setdefault(question.category, Acceptance()).merge(acceptance)
            bar.advance(1)
    return results


class _Standalone:
    """Standalone quality after all cuts, a question at a time.

    Args:
        length: tokens written after a cut.
    """

    def __init__(self, subject: Subject, length: int, confidence: Confidence | None) -> None:
        self._subject = subject
        self._length = length
        self._confidence = confidence
        self.cuts = {cut: StandaloneQuality() for cut in CUTS}
        self.shares = {share: StandaloneQuality() for share in SHARES}
        self.cold: StandaloneQuality | None = None

    def add(self, question: AnsweredQuestion, *, cold: bool) -> None:
        """Measures one question; with `cold`, without any memory too."""
        whole = len(question.answer)
        wanted = [(cut, self.cuts[cut]) for cut in CUTS if cut < whole]
        wanted += [(cut_at(share, whole), quality) for share, quality in self.shares.items()]
        places = sorted({cut for cut, _ in wanted})
        measured = dict(zip(places, self._measure(question, places), strict=True))
        for cut, quality in wanted:
            quality.merge(measured[cut])
        if cold:
            self.cold = self.cold or StandaloneQuality()
            self.cold.merge(self._measure(question, [0], memory=False)[0])

    def _measure(
        self, question: AnsweredQuestion, cuts: Sequence[int], *, memory: bool = True
    ) -> list[StandaloneQuality]:
        prompt, answer, reader = question.prompt, question.answer, self._subject.reader
        runs = self._subject.runs(prompt, answer, cuts, Room(self._length), memory=memory)
        return [
            standalone_quality(run, reader, prompt, answer, cut, self._length, self._confidence)
            for cut, run in zip(cuts, runs, strict=True)
        ]


def cut_at(share: str, whole: int) -> int:
    """Tokens of an answer of `whole` tokens that are its first share."""
    return int(float(share) * whole + 1e-6)


def _check_results(
    subject: Subject,
    questions: Sequence[Question],
    files: ModelFiles,
    options: EvaluationOptions,
    progress: Progress,
) -> TaskResults:
    checked = [question for question in questions if question.result is not None]
    room = Room(options.task_tokens, options.task_tokens)
    answered = answer_questions(checked, files, subject.reader, options.task_tokens, progress)
    tokenizer, stop_ids = load_tokenizer(files), stop_tokens(files)
    results: TaskResults = {share: {} for share in SHARES}
    with progress.task("checking results", len(answered)) as bar:
        for question in answered:
            cuts = [cut_at(share, len(question.answer)) for share in SHARES]
            runs = subject.runs(question.prompt, question.answer, cuts, room)
            for categories, cut, run in zip(results.values(), cuts, runs, strict=True):
                if question.result is not None:
                    part = task_accuracy(question.result, question.answer, cut, run.tokens, tokenizer.decode, stop_ids)
                    categories.setdefault(question.category, TaskAccuracy()).merge(part)
            bar.advance(1)
    return results

"""Measures questions: the target answers them, the drafter is replayed, cut off, and its results are checked.

State: target and drafter, loaded once a process. Invariant: a question's measures, times apart, depend on nothing but
the questions of its part, whose answers share forwards where the level is not exact by row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any

import torch
from moa_kernels import set_threads
from moa_shared.drafting.confidence import TokenConfidence
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer
from moa_shared.models.sources.generation import asked_sampling
from moa_shared.programs.progress import Progress, SilentProgress
from moa_shared.protocol.levels import INT8

from moa_training.cluster.parts import Advance
from moa_training.data.questions import TaskQuestion, stop_tokens
from moa_training.evaluation.acceptance import DraftShape
from moa_training.evaluation.checkpoints import LOOKUP, NONE, load_fitting_checkpoint
from moa_training.evaluation.companion_subject import PREFIX, CompanionSubject, companion_named, load_subject
from moa_training.evaluation.measuring.measures import QuestionMeasures
from moa_training.evaluation.standalone import StandaloneQuality, standalone_quality
from moa_training.evaluation.subjects import DrafterSubject, LookupSubject, Subject, WritingLimit
from moa_training.evaluation.task_accuracy import TaskAccuracy, task_accuracy
from moa_training.teacher.answers import AnsweredQuestion, answer_questions
from moa_training.teacher.same_target import SameTarget
from moa_training.teacher.target_reader import load_reader, sampling_for

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
        temperature: of the target's answers, as of `asked_sampling`.
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
    temperature: str = "0"

    def basis(self) -> dict[str, Any]:
        """What a question's measures depend on besides the question, the target and the drafter."""
        content = asdict(self)
        for name in ("target", "limit", "longest_prompt", "threads"):
            del content[name]
        return content

    @property
    def trees(self) -> list[TreeShape]:
        """The trees; the last one is the tree whose acceptance length counts."""
        return [*(replace(self.tree, nodes=nodes) for nodes in self.more_nodes), self.tree]


def question_item(question: TaskQuestion) -> list[Any]:
    """A question as JSON has it."""
    return [question.category, list(question.prompt), None if question.result is None else str(question.result)]


def _question(item: list[Any]) -> TaskQuestion:
    category, prompt, result = item
    return TaskQuestion(category, tuple(prompt), None if result is None else Decimal(result))


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """Measures the questions of a part: items are `question_item`s, results `QuestionMeasures` of each.

    Args:
        checkpoint: its name, under which every worker finds it.
        fingerprint: of the checkpoint; empty where there is none.
        confidence: the drafter's; None: its own chances are taken.
    """

    target: SameTarget
    checkpoint: str
    fingerprint: str
    confidence: TokenConfidence | None
    options: EvaluationOptions

    def start(self, progress: Progress) -> Callable[[str, Advance], str]:
        options = self.options
        set_threads(options.threads)
        if options.threads:
            torch.set_num_threads(options.threads)
        files = self.target.find(progress)
        measuring = _Measuring(self, files, *self._subject(files, progress))

        def work(items: str, advance: Advance) -> str:
            questions = [_question(item) for item in json.loads(items)]
            return json.dumps([measures.to_json() for measures in measuring.measure(questions, advance)])

        return work

    def _subject(self, files: ModelFiles, progress: Progress) -> tuple[Subject, list[DraftShape]]:
        """What is under test, and the shapes of its drafts."""
        options, stop_ids = self.options, stop_tokens(files)
        sampling = asked_sampling(options.temperature, files)
        if self.checkpoint in (LOOKUP, NONE):
            reader = load_reader(files, 0, options.execution, progress)
            return LookupSubject(reader, stop_ids), [DraftShape(options.chain if self.checkpoint == LOOKUP else 0)]
        trees = [DraftShape(tree.nodes, tree, options.copies) for tree in options.trees]
        shapes = [DraftShape(options.chain), *trees]
        companion = companion_named(self.checkpoint, progress)
        if companion is not None:
            self._check(companion.fingerprint)
            reader = load_reader(files, 0, options.execution, progress)
            loaded = load_subject(companion, files, options.drafter_weights, progress)
            return CompanionSubject(loaded, reader, stop_ids, sampling), shapes
        checkpoint = load_fitting_checkpoint(self.checkpoint, files)
        self._check(checkpoint.fingerprint)
        config = checkpoint.config
        reader = load_reader(files, config.reused_layers, options.execution, progress, config.state_entries)
        subject = DrafterSubject(
            checkpoint,
            reader,
            WeightReader(files),
            options.drafter_weights,
            stop_ids,
            guarded=options.guarded,
            sampling=sampling,
        )
        return subject, shapes

    def _check(self, fingerprint: str) -> None:
        """Raises MismatchError if a worker has found another drafter by the same name."""
        if fingerprint != self.fingerprint:
            raise MismatchError(
                f"{self.checkpoint} is another drafter on this worker ({fingerprint[:12]}, "
                f"the work was planned for {self.fingerprint[:12]}).",
                hint="Give every node the same file at the same path.",
            )


class _Measuring:
    """Measures with what a job has loaded."""

    def __init__(self, job: EvaluationJob, files: ModelFiles, subject: Subject, shapes: Sequence[DraftShape]) -> None:
        self._options, self._confidence = job.options, job.confidence
        self._reads_memory = bool(job.fingerprint) and not job.checkpoint.startswith(PREFIX)
        self._writes = job.checkpoint != NONE
        self._files, self._subject, self._shapes = files, subject, shapes
        self._sampling = asked_sampling(job.options.temperature, files)
        self._decode, self._stop_ids = load_tokenizer(files).decode, stop_tokens(files)

    def measure(self, questions: Sequence[TaskQuestion], advance: Advance) -> list[QuestionMeasures]:
        """All measures of each question."""
        options = self._options
        checked = [question for question in questions if question.result is not None and options.task_tokens]
        whole = iter(self._answer(checked, options.task_tokens) if self._writes else ())
        measured = []
        for question in self._answer(questions, options.answer_tokens):
            measures = QuestionMeasures(question.category, self._replay(question))
            if options.standalone_tokens and self._writes:
                self._add_standalone(question, measures)
            if question.result is not None and (answered := next(whole, None)) is not None:
                measures.task = self._check_result(answered)
            measured.append(measures)
            advance(1)
        return measured

    def _answer(self, questions: Sequence[TaskQuestion], tokens: int) -> list[AnsweredQuestion]:
        reader, sampling = self._subject.reader, self._sampling
        return answer_questions(questions, self._files, reader, tokens, SilentProgress(), sampling=sampling)

    def _replay(self, question: AnsweredQuestion) -> dict[str, Any]:
        accepted = self._subject.replay(question.prompt, question.answer, self._shapes)
        return {shape.name: each for shape, each in zip(self._shapes, accepted, strict=True)}

    def _add_standalone(self, question: AnsweredQuestion, measures: QuestionMeasures) -> None:
        """Standalone quality after all cuts; of a drafter without any memory too."""
        whole = len(question.answer)
        cuts = [cut for cut in CUTS if cut < whole]
        shares = {share: cut_at(share, whole) for share in SHARES}
        places = sorted({*cuts, *shares.values()})
        measured = dict(zip(places, self._qualities(question, places), strict=True))
        measures.standalone = {cut: measured[cut] for cut in cuts}
        measures.shares = {share: measured[cut] for share, cut in shares.items()}
        if self._reads_memory:
            (measures.cold,) = self._qualities(question, [0], memory=False)

    def _qualities(
        self, question: AnsweredQuestion, cuts: Sequence[int], *, memory: bool = True
    ) -> list[StandaloneQuality]:
        prompt, answer, reader = question.prompt, question.answer, self._subject.reader
        length, sampling = self._options.standalone_tokens, sampling_for(self._sampling, question.prompt)
        runs = self._subject.runs(prompt, answer, cuts, WritingLimit(length), memory=memory)
        return [
            standalone_quality(run, reader, prompt, answer, cut, length, self._confidence, sampling)
            for cut, run in zip(cuts, runs, strict=True)
        ]

    def _check_result(self, question: AnsweredQuestion) -> dict[str, TaskAccuracy]:
        """Task accuracy after each share of the answer."""
        if question.result is None:
            return {}
        room = WritingLimit(self._options.task_tokens, self._options.task_tokens)
        cuts = [cut_at(share, len(question.answer)) for share in SHARES]
        runs = self._subject.runs(question.prompt, question.answer, cuts, room)
        return {
            share: task_accuracy(question.result, question.answer, cut, run.tokens, self._decode, self._stop_ids)
            for share, cut, run in zip(SHARES, cuts, runs, strict=True)
        }


def cut_at(share: str, whole: int) -> int:
    """Tokens of an answer of `whole` tokens that are its first share."""
    return int(float(share) * whole + 1e-6)

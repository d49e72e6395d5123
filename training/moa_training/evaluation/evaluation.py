"""`moa-train evaluate`: a checkpoint on questions, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from moa_kernels import set_threads
from moa_shared.drafter import Checkpoint, load_checkpoint
from moa_shared.drafter.checkpoint.shipped import SHIPPED_DRAFTERS, require_shipped_drafter
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import DataError, MismatchError
from moa_shared.models import ModelFiles, WeightReader, load_tokenizer, resolve
from moa_shared.programs.progress import Progress
from moa_shared.protocol.levels import INT8

from moa_training.data.questions import Question, read_questions, stop_tokens
from moa_training.evaluation.acceptance import Acceptance, DrafterSubject, LookupSubject, Shape, Subject
from moa_training.evaluation.standalone import CUTS, StandaloneQuality, standalone_quality
from moa_training.evaluation.task_accuracy import TaskAccuracy, task_accuracy
from moa_training.teacher.answers import AnsweredQuestion, answer_questions
from moa_training.teacher.target_reader import load_reader

LOOKUP, NONE = "lookup", "none"


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


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of an evaluation.

    Args:
        by_category: for each shape's name, acceptance by category.
        left_out: rows of the questions that were malformed or too long.
        standalone: by the number of answer tokens before the cut.
        cold: from the question on, without any memory: a device that begins without its server; None: not measured.
        task: the same, by category; categories without results to check are left out.
    """

    checkpoint: str
    target_id: str
    questions: int
    left_out: int
    by_category: dict[str, dict[str, Acceptance]]
    standalone: dict[int, StandaloneQuality]
    task: dict[int, dict[str, TaskAccuracy]] = field(default_factory=dict)
    cold: StandaloneQuality | None = None

    def total(self, shape: str) -> Acceptance:
        total = Acceptance()
        for acceptance in self.by_category[shape].values():
            total.merge(acceptance)
        return total

    def to_json(self) -> dict[str, Any]:
        """Keys: checkpoint, target, questions, left_out, acceptance_length (of the tree), and `shapes`: for each its
        acceptance_length, forwards, draft_ms (mean time of a draft), accepted (verifications by number of accepted
        drafts), by_position (share accepted at each depth where the one before was) and by_category
        (acceptance_length); `standalone`: for each cut the questions and the means that `StandaloneQuality` describes;
        `cold`: the same without memory (null: not measured); and `task`: for each cut and category the questions and
        the shares that `TaskAccuracy` describes.
        """
        shapes = {}
        for name, categories in self.by_category.items():
            total = self.total(name)
            shapes[name] = {
                "acceptance_length": round(total.length, 4),
                "forwards": total.forwards,
                "draft_ms": round(total.draft_ms, 3),
                "accepted": total.accepted,
                "by_position": [round(share, 4) for share in total.by_position],
                "by_category": {category: round(part.length, 4) for category, part in categories.items()},
            }
        return {
            "checkpoint": self.checkpoint,
            "target": self.target_id,
            "questions": self.questions,
            "left_out": self.left_out,
            "acceptance_length": shapes[list(shapes)[-1]]["acceptance_length"],
            "shapes": shapes,
            "standalone": {str(cut): _rounded(part) for cut, part in self.standalone.items()},
            "cold": None if self.cold is None else _rounded(self.cold),
            "task": {
                str(cut): {
                    category: {
                        "questions": part.questions,
                        **{name: round(share, 4) for name, share in part.shares.items()},
                    }
                    for category, part in categories.items()
                }
                for cut, categories in self.task.items()
            },
        }


def _rounded(part: StandaloneQuality) -> dict[str, Any]:
    return {"questions": part.questions, **{name: round(value, 4) for name, value in part.means.items()}}


def find_checkpoint(name: str, files: ModelFiles) -> Path:
    """The file that a user means: a path, a folder that holds a drafter, or one of SHIPPED_DRAFTERS.

    Raises:
        NotFoundError: no such checkpoint.
    """
    if name in SHIPPED_DRAFTERS:
        hint = "Train one with moa-train fit."
        return require_shipped_drafter(files.fingerprint, files.target_id, name, hint=hint)
    given = Path(name)
    return given / "drafter.safetensors" if given.is_dir() else given


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
    subject: Subject = LookupSubject(reader)
    if checkpoint is not None:
        subject = DrafterSubject(
            checkpoint, reader, WeightReader(files), options.drafter_weights, guarded=options.guarded
        )
        shapes = [Shape(options.chain), *(Shape(tree.nodes, tree, options.copies) for tree in options.trees)]
    elif name == LOOKUP:
        shapes = [Shape(options.chain)]
    acceptance = _replay_all(subject, answered, shapes, progress)
    cuts = options.standalone_tokens and name != NONE
    standalone = _cut_all(subject, answered, options.standalone_tokens, progress) if cuts else {}
    cold = None
    if cuts and checkpoint is not None:
        cold = _begin_cold(subject, answered, options.standalone_tokens, progress)
    task: dict[int, dict[str, TaskAccuracy]] = {}
    if options.task_tokens and name != NONE:
        task = _check_results(subject, questions, files, options, progress)
    return Evaluation(name, files.target_id, len(questions), left_out, acceptance, standalone, task, cold)


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


def _cut_all(
    subject: Subject, answered: Sequence[AnsweredQuestion], length: int, progress: Progress
) -> dict[int, StandaloneQuality]:
    results = {cut: StandaloneQuality() for cut in CUTS}
    with progress.task("standalone text", len(answered)) as bar:
        for question in answered:
            for cut, result in results.items():
                result.merge(standalone_quality(subject, question.prompt, question.answer, cut, length))
            bar.advance(1)
    return results


def _begin_cold(
    subject: Subject, answered: Sequence[AnsweredQuestion], length: int, progress: Progress
) -> StandaloneQuality:
    result = StandaloneQuality()
    with progress.task("continuing without memory", len(answered)) as bar:
        for question in answered:
            result.merge(standalone_quality(subject, question.prompt, question.answer, 0, length, memory=False))
            bar.advance(1)
    return result


def _check_results(
    subject: Subject,
    questions: Sequence[Question],
    files: ModelFiles,
    options: EvaluationOptions,
    progress: Progress,
) -> dict[int, dict[str, TaskAccuracy]]:
    checked = [question for question in questions if question.result is not None]
    length = options.task_tokens
    answered = answer_questions(checked, files, subject.reader, length, progress)
    tokenizer = load_tokenizer(files)
    stop = stop_tokens(files)
    results: dict[int, dict[str, TaskAccuracy]] = {cut: {} for cut in CUTS}
    with progress.task("checking results", len(answered)) as bar:
        for question in answered:
            for cut, categories in results.items():
                part = task_accuracy(subject, question, tokenizer.decode, stop, cut, length)
                categories.setdefault(question.category, TaskAccuracy()).merge(part)
            bar.advance(1)
    return results


def format_table(evaluation: Evaluation) -> str:
    """Acceptance by category and by position, for people."""
    names = list(evaluation.by_category)
    categories = list(evaluation.by_category[names[0]])
    lines = [f"{'':14}" + "".join(f"{name:>14}" for name in names)]
    for category in categories:
        cells = [evaluation.by_category[name][category].length for name in names]
        lines.append(f"{category:14}" + "".join(f"{cell:14.3f}" for cell in cells))
    totals = [evaluation.total(name) for name in names]
    lines.append(f"{'all':14}" + "".join(f"{total.length:14.3f}" for total in totals))
    for name, total in zip(names, totals, strict=True):
        shares = " ".join(f"{share:.2f}" for share in total.by_position)
        lines.append(f"accepted at each depth, {name}: {shares}")
    times = ", ".join(f"{name} {total.draft_ms:.1f}" for name, total in zip(names, totals, strict=True))
    lines.append(f"ms a draft: {times}")
    noun = "question" if evaluation.questions == 1 else "questions"
    left_out = f", {evaluation.left_out} left out" if evaluation.left_out else ""
    lines.append(f"{evaluation.questions} {noun}{left_out}; tokens per target forward, the bonus token included")
    alone = {f"after {cut} tokens": part for cut, part in evaluation.standalone.items()}
    if evaluation.cold is not None:
        alone["without memory"] = evaluation.cold
    for where, part in alone.items():
        means = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in part.means.items())
        lines.append(f"standalone {where} ({part.questions}): {means}")
    for cut, accuracies in evaluation.task.items():
        for category, accuracy in accuracies.items():
            shares = ", ".join(f"{name.replace('_', ' ')} {share:.2f}" for name, share in accuracy.shares.items())
            lines.append(f"results of {category} after {cut} tokens ({accuracy.questions}): {shares}")
    unable = _right_in_none(evaluation.task)
    if unable:
        lines.append(f"the target itself is right in none of {', '.join(unable)}: nothing can be lost there")
    return "\n".join(lines)


def _right_in_none(task: dict[int, dict[str, TaskAccuracy]]) -> list[str]:
    """Categories in which the target has no right result at any cut."""
    right: dict[str, int] = {}
    for parts in task.values():
        for category, accuracy in parts.items():
            if accuracy.questions:
                right[category] = right.get(category, 0) + accuracy.target_right
    return [category for category, count in right.items() if not count]

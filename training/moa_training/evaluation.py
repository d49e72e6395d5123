"""`moa-train evaluate`: a checkpoint on questions, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from moa_shared.drafter import Checkpoint, load_checkpoint
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import MismatchError, NotFoundError
from moa_shared.models import ModelFiles, resolve
from moa_shared.progress import Progress
from moa_shared.shipped import shipped_drafter

from moa_training.acceptance import Acceptance, DrafterSubject, LookupSubject, Shape, Subject
from moa_training.questions import AnsweredQuestion, answer_questions, read_questions
from moa_training.standalone import CUTS, StandaloneQuality, standalone_quality
from moa_training.teacher import Teacher

DEFAULT, LOOKUP, NONE = "default", "lookup", "none"


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
        standalone_tokens: written alone behind each cut; 0: not measured.
    """

    target: str = "default"
    limit: int | None = None
    answer_tokens: int = 128
    chain: int = 5
    tree: TreeShape = TreeShape(depth=5, breadth=6, nodes=24)  # noqa: RUF009
    longest_prompt: int = 1024
    dtype: torch.dtype = torch.bfloat16
    threads: int = 1
    standalone_tokens: int = 96
    more_nodes: tuple[int, ...] = ()
    copies: bool = False

    @property
    def trees(self) -> list[TreeShape]:
        """The tree whose acceptance length counts stands last."""
        return [*(replace(self.tree, nodes=nodes) for nodes in self.more_nodes), self.tree]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results.

    Args:
        by_category: for each shape's name, acceptance by category.
        left_out: rows of the questions that were malformed or too long.
        standalone: by the number of answer tokens before the cut.
    """

    checkpoint: str
    target_id: str
    questions: int
    left_out: int
    by_category: dict[str, dict[str, Acceptance]]
    standalone: dict[int, StandaloneQuality]

    def total(self, shape: str) -> Acceptance:
        total = Acceptance()
        for acceptance in self.by_category[shape].values():
            total.merge(acceptance)
        return total

    def to_json(self) -> dict[str, Any]:
        """Keys: checkpoint, target, questions, left_out, acceptance_length (of the tree), and `shapes`: for each its
        acceptance_length, forwards, draft_ms (mean time of a draft), accepted (verifications by number of accepted
        drafts), by_position (share accepted at each depth where the one before was) and by_category
        (acceptance_length); and `standalone`: for each cut the questions and the means that `StandaloneQuality`
        describes.
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
            "standalone": {
                str(cut): {"questions": part.questions, **{name: round(value, 4) for name, value in part.means.items()}}
                for cut, part in self.standalone.items()
            },
        }


def find_checkpoint(name: str, files: ModelFiles) -> Path:
    """The file that a user means: a path, a folder that holds a drafter, or "default".

    Raises:
        NotFoundError: no such checkpoint.
    """
    if name == DEFAULT:
        path = shipped_drafter(files.fingerprint)
        if path is None:
            raise NotFoundError(
                f"No drafter comes with the package for {files.target_id}.", hint="Train one with moa-train fit."
            )
        return path
    given = Path(name)
    return given / "drafter.safetensors" if given.is_dir() else given


def load_fitting_checkpoint(name: str, files: ModelFiles) -> Checkpoint:
    """Raises MismatchError for a drafter of another target."""
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
    """Acceptance of the checkpoint `name` on the questions."""
    if options.threads:
        torch.set_num_threads(options.threads)
    files = resolve(options.target, progress=progress)
    checkpoint = None if name in (LOOKUP, NONE) else load_fitting_checkpoint(name, files)
    questions, left_out = read_questions(questions_path, files, options.limit, options.longest_prompt)
    reused = 0 if checkpoint is None else checkpoint.config.reused_layers
    teacher = Teacher.load(files, reused, options.dtype, torch.device("cpu"))
    answered = answer_questions(questions, files, teacher.model, options.answer_tokens, options.dtype, progress)
    shapes = [Shape(0)]  # plain steps
    subject: Subject = LookupSubject(teacher)
    if checkpoint is not None:
        subject = DrafterSubject(checkpoint, teacher, options.dtype)
        shapes = [Shape(options.chain), *(Shape(tree.nodes, tree, options.copies) for tree in options.trees)]
    elif name == LOOKUP:
        shapes = [Shape(options.chain)]
    acceptance = _replay_all(subject, answered, shapes, progress)
    cuts = options.standalone_tokens and name != NONE
    standalone = _cut_all(subject, answered, options.standalone_tokens, progress) if cuts else {}
    return Evaluation(name, files.target_id, len(questions), left_out, acceptance, standalone)


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
    with progress.task("going on alone", len(answered)) as bar:
        for question in answered:
            for cut, result in results.items():
                result.merge(standalone_quality(subject, question.prompt, question.answer, cut, length))
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
    for cut, part in evaluation.standalone.items():
        means = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in part.means.items())
        lines.append(f"alone after {cut} tokens ({part.questions}): {means}")
    return "\n".join(lines)

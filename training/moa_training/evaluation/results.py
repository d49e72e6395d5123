"""The results of an evaluation, as JSON and as a table for people. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from moa_training.evaluation.acceptance import Acceptance
from moa_training.evaluation.standalone import StandaloneQuality
from moa_training.evaluation.task_accuracy import TaskAccuracy

TaskResults = dict[str, dict[str, TaskAccuracy]]  # by the share of the answer before the cut, and by category


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of an evaluation.

    Args:
        by_category: for each shape's name, acceptance by category.
        left_out: rows of the questions that were malformed or too long.
        standalone: by the number of answer tokens before the cut.
        shares: by the share of the answer before the cut ("0.0": the server has read the prompt).
        cold: from the question on, without any memory: a device that begins without its server; None: not measured.
        task: categories without results to check are left out.
    """

    checkpoint: str
    target_id: str
    questions: int
    left_out: int
    by_category: dict[str, dict[str, Acceptance]]
    standalone: dict[int, StandaloneQuality] = field(default_factory=dict)
    shares: dict[str, StandaloneQuality] = field(default_factory=dict)
    cold: StandaloneQuality | None = None
    task: TaskResults = field(default_factory=dict)

    def total(self, shape: str) -> Acceptance:
        total = Acceptance()
        for acceptance in self.by_category[shape].values():
            total.merge(acceptance)
        return total

    @property
    def all_shares(self) -> StandaloneQuality | None:
        """The cuts at all shares together; None: not measured."""
        return merged(self.shares.values()) if self.shares else None

    def to_json(self) -> dict[str, Any]:
        """Keys: checkpoint, target, questions, left_out, acceptance_length (of the tree), and `shapes`: for each its
        acceptance_length, forwards, draft_ms (mean time of a draft), accepted (verifications by number of accepted
        drafts), by_position (share accepted at each depth where the one before was) and by_category
        (acceptance_length); `standalone`, `shares`: for each cut the questions and the means that `StandaloneQuality`
        describes; `all_shares`, `cold`: the same of one (null: not measured); and `task`: for each share and category
        the questions and the shares that `TaskAccuracy` describes.
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
            "standalone": {str(cut): _quality_json(part) for cut, part in self.standalone.items()},
            "shares": {share: _quality_json(part) for share, part in self.shares.items()},
            "all_shares": _quality_json(self.all_shares),
            "cold": _quality_json(self.cold),
            "task": {
                share: {category: _task_json(part) for category, part in categories.items()}
                for share, categories in self.task.items()
            },
        }


def merged(parts: Iterable[StandaloneQuality]) -> StandaloneQuality:
    """The cuts of all parts together."""
    total = StandaloneQuality()
    for part in parts:
        total.merge(part)
    return total


def _quality_json(part: StandaloneQuality | None) -> dict[str, Any] | None:
    if part is None:
        return None
    return {"questions": part.questions, **{name: round(value, 4) for name, value in part.means.items()}}


def _task_json(part: TaskAccuracy) -> dict[str, Any]:
    return {"questions": part.questions, **{name: round(share, 4) for name, share in part.shares.items()}}


def format_table(evaluation: Evaluation) -> str:
    """Acceptance by category and by position, standalone text by cut, task results by share, for people."""
    return "\n".join([*_acceptance_lines(evaluation), *_standalone_lines(evaluation), *_task_lines(evaluation.task)])


def _acceptance_lines(evaluation: Evaluation) -> list[str]:
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
    return lines


# column, key, decimals
_COLUMNS = (
    ("agree 8", "agreement_8", 2),
    ("16", "agreement_16", 2),
    ("32", "agreement_32", 2),
    ("new", "new_agreement", 2),
    ("repeated", "repeated", 2),
    ("target's", "target_repeated", 2),
    ("log-l.", "log_likelihood", 2),
    ("useful", "useful_run", 1),
    ("median", "median_useful_run", 1),
    ("shown", "shown", 1),
    ("median", "median_shown", 1),
    ("kept", "precision", 2),
    ("in hand", "in_hand", 2),
    ("gated", "in_hand_gated", 2),
    ("served", "served", 2),
)


def _standalone_lines(evaluation: Evaluation) -> list[str]:
    parts = {f"after {cut} tokens": part for cut, part in evaluation.standalone.items()}
    parts |= {f"after {float(share):.0%}": part for share, part in evaluation.shares.items()}
    if (overall := evaluation.all_shares) is not None:
        parts["all shares"] = overall
    if evaluation.cold is not None:
        parts["without memory"] = evaluation.cold
    if not parts:
        return []
    lines = ["standalone (cuts)      " + " ".join(f"{column:>8}" for column, _, _ in _COLUMNS)]
    for where, part in parts.items():
        means = part.means
        cells = [f"{means[key]:8.{digits}f}" if key in means else " " * 8 for _, key, digits in _COLUMNS]
        lines.append(f"{f'{where} ({part.questions})':23}" + " ".join(cells))
    return lines


def _task_lines(task: TaskResults) -> list[str]:
    lines = []
    for share, accuracies in task.items():
        for category, accuracy in accuracies.items():
            shares = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in accuracy.shares.items())
            lines.append(f"results of {category} after {float(share):.0%} ({accuracy.questions}): {shares}")
    unable = _right_in_none(task)
    if unable:
        lines.append(f"the target itself is right in none of {', '.join(unable)}: nothing can be lost there")
    return lines


def _right_in_none(task: TaskResults) -> list[str]:
    """Categories in which the target has no right result at any cut."""
    right: dict[str, int] = {}
    for parts in task.values():
        for category, accuracy in parts.items():
            if accuracy.questions:
                right[category] = right.get(category, 0) + accuracy.target_right
    return [category for category, count in right.items() if not count]

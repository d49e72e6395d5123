"""The measures of one question, as JSON, and an evaluation put together from those of all. Pure.

Invariant: numbers survive JSON unchanged, and are added up in the order of the questions. So the sums are the same
whichever process measured which question.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from moa_training.evaluation.acceptance import Acceptance
from moa_training.evaluation.results import Evaluation, merged
from moa_training.evaluation.standalone import AnswerAfterCut, StandaloneQuality
from moa_training.evaluation.task_accuracy import TaskAccuracy


@dataclass(slots=True)
class QuestionMeasures:
    """What was measured of one question.

    Args:
        acceptance: by the name of a draft's shape.
        standalone: by the number of answer tokens before the cut; answers that are shorter have none.
        shares: by the share of the answer before the cut.
        cold: without any memory.
        task: by the share of the answer before the cut; empty where there is no result to check.
    """

    category: str
    acceptance: dict[str, Acceptance]
    standalone: dict[int, StandaloneQuality] = field(default_factory=dict)
    shares: dict[str, StandaloneQuality] = field(default_factory=dict)
    cold: StandaloneQuality | None = None
    task: dict[str, TaskAccuracy] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> QuestionMeasures:
        """From what `to_json` gave, as it comes out of a file."""
        return cls(
            content["category"],
            {shape: Acceptance(**part) for shape, part in content["acceptance"].items()},
            {int(cut): _quality(part) for cut, part in content["standalone"].items()},
            {share: _quality(part) for share, part in content["shares"].items()},
            None if content["cold"] is None else _quality(content["cold"]),
            {share: TaskAccuracy(**part) for share, part in content["task"].items()},
        )


def _quality(content: dict[str, Any]) -> StandaloneQuality:
    texts = [AnswerAfterCut(**text) for text in content["texts"]]
    return StandaloneQuality(content["questions"], content["sums"], content["counts"], texts)


def add_up(empty: Evaluation, measured: Iterable[QuestionMeasures]) -> Evaluation:
    """The measures of questions, in order, added to an evaluation of none, which is used up."""
    result, colds = empty, []
    for question in measured:
        for shape, acceptance in question.acceptance.items():
            categories = result.by_category.setdefault(shape, {})
            categories.setdefault(question.category, Acceptance()).merge(acceptance)
        for cut, quality in question.standalone.items():
            result.standalone.setdefault(cut, StandaloneQuality()).merge(quality)
        for share, quality in question.shares.items():
            result.shares.setdefault(share, StandaloneQuality()).merge(quality)
        if question.cold is not None:
            colds.append(question.cold)
        for share, accuracy in question.task.items():
            result.task.setdefault(share, {}).setdefault(question.category, TaskAccuracy()).merge(accuracy)
    return replace(result, cold=merged(colds)) if colds else result

"""Task accuracy when the server is cut off: the target writes the first tokens of an answer and the drafter the rest;
is the result right?

The target's own accuracy on the same questions is counted too: where that is zero, the drafter's says nothing. Pure
but for the networks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

from moa_training.data.task_results import stated_result
from moa_training.evaluation.acceptance import Subject
from moa_training.teacher.answers import AnsweredQuestion


@dataclass(slots=True)
class TaskAccuracy:
    """Counts over questions whose answers the cut shortens.

    Attributes:
        right: the cut answer, continued by the drafter, gives the reference's result. target_right: the target's does.
        same_result: both give the same, right or wrong.
        ended: the drafter ended the answer itself. target_ended: the target did, before the limit.
    """

    questions: int = 0
    right: int = 0
    target_right: int = 0
    same_result: int = 0
    ended: int = 0
    target_ended: int = 0

    def merge(self, other: TaskAccuracy) -> None:
        for count in fields(self):
            setattr(self, count.name, getattr(self, count.name) + getattr(other, count.name))

    @property
    def shares(self) -> dict[str, float]:
        """The counts as shares of the questions, under their own names."""
        names = [count.name for count in fields(self) if count.name != "questions"]
        return {name: getattr(self, name) / self.questions for name in names} if self.questions else {}


def task_accuracy(
    subject: Subject,
    question: AnsweredQuestion,
    decode: Callable[[Sequence[int]], str],
    stop_ids: set[int],
    cut: int,
    length: int,
) -> TaskAccuracy:
    """One question, its answer cut after `cut` tokens and continued to `length` of them at most.

    Questions without a result, and answers that the cut does not shorten, are not counted.
    """
    own, target_ended = _until_stop(question.answer[:length], stop_ids)
    if question.result is None or len(own) <= cut:
        return TaskAccuracy()
    written, ended = _until_stop(subject.write([*question.prompt, *own[:cut]], length - cut), stop_ids)
    result, target_result = stated_result(decode([*own[:cut], *written])), stated_result(decode(own))
    return TaskAccuracy(
        questions=1,
        right=result == question.result,
        target_right=target_result == question.result,
        same_result=result is not None and result == target_result,
        ended=ended,
        target_ended=target_ended,
    )


def _until_stop(tokens: Sequence[int], stop_ids: set[int]) -> tuple[list[int], bool]:
    """Tokens before the first that ends the answer, and whether there is one."""
    for place, token in enumerate(tokens):
        if token in stop_ids:
            return list(tokens[:place]), True
    return list(tokens), False

"""Task accuracy when the server is cut off: the target writes the first tokens of an answer and the drafter the rest;
is the result right?

The target's own accuracy on the same questions is counted too: where that is zero, the drafter's says nothing. So is
that of the first tokens alone, which are all that somebody without a drafter has. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal

from moa_training.data.task_results import stated_result


@dataclass(slots=True)
class TaskAccuracy:
    """Counts over questions whose answers the cut shortens.

    Attributes:
        right: the cut answer, continued by the drafter, gives the reference's result. target_right: the target's does.
        same_result: both give the same, right or wrong.
        served_right, served_same_result: the same of the cut answer as it is.
        ended: the drafter ended the answer itself. target_ended: the target did, before the limit.
    """

    questions: int = 0
    right: int = 0
    target_right: int = 0
    same_result: int = 0
    served_right: int = 0
    served_same_result: int = 0
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
    expected: Decimal,
    answer: Sequence[int],
    cut: int,
    written: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    stop_ids: Collection[int],
) -> TaskAccuracy:
    """One question whose answer was cut after `cut` tokens; not counted if the cut does not shorten it.

    Args:
        expected: the reference's result.
        answer: the target's own.
        written: what was written after the cut.
    """
    own, target_ended = _until_stop(answer, stop_ids)
    if len(own) <= cut:
        return TaskAccuracy()
    continued, ended = _until_stop(written, stop_ids)
    target, served, whole = (stated_result(decode(text)) for text in (own, own[:cut], [*own[:cut], *continued]))
    return TaskAccuracy(
        questions=1,
        right=whole == expected,
        target_right=target == expected,
        same_result=whole is not None and whole == target,
        served_right=served == expected,
        served_same_result=served is not None and served == target,
        ended=ended,
        target_ended=target_ended,
    )


def _until_stop(tokens: Sequence[int], stop_ids: Collection[int]) -> tuple[list[int], bool]:
    """Tokens before the first that ends the answer, and whether there is one."""
    for place, token in enumerate(tokens):
        if token in stop_ids:
            return list(tokens[:place]), True
    return list(tokens), False

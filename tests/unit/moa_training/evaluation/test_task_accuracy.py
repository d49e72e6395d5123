from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
from moa_training.evaluation.task_accuracy import TaskAccuracy, task_accuracy
from moa_training.teacher.answers import AnsweredQuestion

STOP = 99
ANSWER = (*range(10, 20), 7, STOP)  # ten tokens, the result, the end


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@dataclass
class Writer:
    """Writes what it was made with."""

    text: tuple[int, ...]
    asked: tuple[list[int], int] = ([], 0)
    reader: Any = None

    def replay(self, *_: Any) -> Any:
        raise NotImplementedError

    def write(self, known: Sequence[int], length: int, *, memory: bool = True) -> list[int]:
        self.asked = (list(known), length)
        return list(self.text[:length])


def measure(writer: Writer, result: int | None = 7, cut: int = 8, length: int = 30) -> TaskAccuracy:
    question = AnsweredQuestion("math", (1, 2), ANSWER, None if result is None else Decimal(result))
    return task_accuracy(writer, question, decode, {STOP}, cut, length)


def test_the_right_result_is_right_whatever_follows_the_end() -> None:
    writer = Writer((3, 7, STOP, 4, 4))
    assert measure(writer) == TaskAccuracy(1, right=1, target_right=1, same_result=1, ended=1, target_ended=1)
    assert writer.asked == ([1, 2, *range(10, 18)], 22)


def test_a_loop_that_never_ends_gives_its_last_number() -> None:
    assert measure(Writer((5,) * 40)) == TaskAccuracy(1, target_right=1, target_ended=1)


def test_the_targets_own_mistakes_are_told_from_the_drafters() -> None:
    assert measure(Writer((7, STOP)), result=8) == TaskAccuracy(1, same_result=1, ended=1, target_ended=1)
    assert measure(Writer((8,)), result=8) == TaskAccuracy(1, right=1, target_ended=1)


def test_who_writes_nothing_is_judged_by_what_is_there() -> None:
    assert measure(Writer(()), result=17) == TaskAccuracy(1, right=1, target_ended=1)


@pytest.mark.parametrize(("result", "cut"), [(None, 8), (7, 11), (7, 64)])
def test_answers_without_a_result_or_that_the_cut_leaves_whole_are_not_counted(result: int | None, cut: int) -> None:
    assert measure(Writer((7,)), result, cut) == TaskAccuracy()


def test_an_answer_longer_than_the_limit_is_cut_there() -> None:
    assert measure(Writer((6, 6)), cut=8, length=10) == TaskAccuracy(1)  # the target got to 19, the drafter to 6


def test_shares_are_of_the_questions() -> None:
    total = TaskAccuracy(3, right=1, target_right=2)
    total.merge(TaskAccuracy(1, target_right=1, ended=1))
    assert total.shares == {"right": 0.25, "target_right": 0.75, "same_result": 0, "ended": 0.25, "target_ended": 0}
    assert TaskAccuracy().shares == {}

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import pytest
from moa_training.evaluation.task_accuracy import TaskAccuracy, task_accuracy

STOP = 99
ANSWER = (*range(10, 20), 7, STOP)  # ten tokens, the result, the end


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def measure(*written: int, result: int = 7, cut: int = 8, answer: Sequence[int] = ANSWER) -> TaskAccuracy:
    return task_accuracy(Decimal(result), answer, cut, written, decode, {STOP})


def test_the_right_result_is_right_whatever_follows_the_end() -> None:
    assert measure(3, 7, STOP, 4, 4) == TaskAccuracy(1, right=1, target_right=1, same_result=1, ended=1, target_ended=1)


def test_a_loop_that_never_ends_gives_its_last_number() -> None:
    assert measure(*[5] * 40) == TaskAccuracy(1, target_right=1, target_ended=1)


def test_the_targets_own_mistakes_are_told_from_the_drafters() -> None:
    assert measure(7, STOP, result=8) == TaskAccuracy(1, same_result=1, ended=1, target_ended=1)
    assert measure(8, result=8) == TaskAccuracy(1, right=1, target_ended=1)


def test_who_writes_nothing_is_judged_by_what_is_there() -> None:
    assert measure(result=17) == TaskAccuracy(1, right=1, served_right=1, target_ended=1)


def test_what_was_served_is_judged_by_itself() -> None:
    twice = (*range(10, 17), 7, 8, 7, STOP)  # the result is there early
    assert measure(8, cut=8, answer=twice) == TaskAccuracy(
        1, target_right=1, served_right=1, served_same_result=1, target_ended=1
    )
    assert measure(7, cut=0).served_right == 0  # nothing is served


@pytest.mark.parametrize("cut", [11, 64])
def test_answers_that_the_cut_leaves_whole_are_not_counted(cut: int) -> None:
    assert measure(7, cut=cut) == TaskAccuracy()


def test_an_answer_that_was_cut_off_has_the_result_that_it_came_to() -> None:
    assert measure(6, 6, answer=ANSWER[:10]) == TaskAccuracy(1)  # the target got to 19, the drafter to 6


def test_shares_are_of_the_questions() -> None:
    total = TaskAccuracy(3, right=1, target_right=2)
    total.merge(TaskAccuracy(1, target_right=1, ended=1))
    shares = total.shares
    assert (shares["right"], shares["target_right"], shares["same_result"], shares["ended"]) == (0.25, 0.75, 0, 0.25)
    assert TaskAccuracy().shares == {}

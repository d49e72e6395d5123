"""Questions keep their categories, and each category gets its share."""

from __future__ import annotations

from inline_snapshot import snapshot
from moa_bench.harness.questions import BenchQuestion
from moa_bench.suites.single.measure import choose
from moa_shared.errors import DataError

from tests.support.messages import raises


def test_categories_take_turns_and_long_prompts_are_passed_over() -> None:
    named = (("a", "long"), ("a", "x"), ("a", "y"), ("a", "z"), ("b", "w"))
    questions = [BenchQuestion("1", category, (text,)) for category, text in named]
    prompts = {"long": [1] * 9, "x": [1], "y": [1], "z": [1], "w": [1]}
    assert [each.text for each in choose(questions, prompts, 2, 8)] == ["x", "w", "y"]
    with raises(DataError, snapshot("No question has at most 0 tokens. Name others with --questions.")):
        choose(questions, prompts, 2, 0)

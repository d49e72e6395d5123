"""Questions keep their categories, and each category gets its share."""

from __future__ import annotations

import json
from pathlib import Path

from inline_snapshot import snapshot
from moa_bench.suites.single.questions import OWN, Question, choose, own_questions, read_categories
from moa_shared.errors import DataError

from tests.support.messages import raises


def write(path: Path, *lines: tuple[str, str | None]) -> Path:
    path.write_text("".join(json.dumps({"category": category, "turns": [text]}) + "\n" for text, category in lines))
    return path


def test_a_line_names_its_category_and_else_its_file(tmp_path: Path) -> None:
    path = write(tmp_path / "mixed.jsonl", ("One?", "writing"), ("Two?", ""), ("Three?", None))
    assert read_categories(path) == [
        Question("writing", "One?"),
        Question("mixed", "Two?"),
        Question("mixed", "Three?"),
    ]


def test_each_file_of_a_folder_is_a_category(tmp_path: Path) -> None:
    write(tmp_path / "qa.jsonl", ("One?", "a"), ("Two?", "b"))
    write(tmp_path / "sum.jsonl", ("Three?", "a"))
    assert [(each.category, each.text) for each in read_categories(tmp_path)] == [
        ("qa", "One?"),
        ("sum", "Three?"),
        ("qa", "Two?"),
    ]


def test_categories_take_turns_and_long_prompts_are_passed_over() -> None:
    questions = [Question("a", "long"), Question("a", "x"), Question("a", "y"), Question("a", "z"), Question("b", "w")]
    prompts = {"long": [1] * 9, "x": [1], "y": [1], "z": [1], "w": [1]}
    assert [each.text for each in choose(questions, prompts, 2, 8)] == ["x", "w", "y"]
    with raises(DataError, snapshot("No question has at most 0 tokens. Name others with --questions.")):
        choose(questions, prompts, 2, 0)


def test_the_own_questions_are_of_one_category() -> None:
    assert {each.category for each in own_questions()} == {OWN}

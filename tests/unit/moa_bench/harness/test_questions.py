"""Questions from files: categories, what is refused with its line, and how they become prompts."""

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.questions import BenchQuestion, read_all
from moa_shared.errors import DataError, NotFoundError

from tests.support.messages import raises


def write(path: Path, *categories: str) -> Path:
    lines = [
        {"question_id": number, "category": category, "turns": [f"{path.stem} {number}", "more"]}
        for number, category in enumerate(categories)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


@pytest.mark.parametrize(
    ("name", "named", "categories"),
    [
        ("mt_bench", ["writing", "math", ""], ["writing", "math", "mt_bench"]),
        ("question", ["writing", "math", "rag", "math_reasoning"], ["mt_bench", "mt_bench", "rag", "math_reasoning"]),
    ],
)
def test_a_line_names_its_category_and_spec_bench_has_its_own_tasks(
    tmp_path: Path, name: str, named: list[str], categories: list[str]
) -> None:
    read = read_all(write(tmp_path / f"{name}.jsonl", *named))
    assert read == [BenchQuestion(each, f"{name} {number}") for number, each in enumerate(categories)]


def test_files_of_a_folder_are_categories_and_take_turns(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", "math", "math")
    write(tmp_path / "qa.jsonl", "qa")
    assert [(each.category, each.text) for each in read_all(tmp_path)] == [
        ("gsm8k", "gsm8k 0"), ("qa", "qa 0"), ("gsm8k", "gsm8k 1"),
    ]  # fmt: skip


def test_what_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There are no questions at"):
        read_all(tmp_path / "nowhere")
    with raises(DataError, snapshot('TMP holds no questions. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read as text"):
        read_all(tmp_path)


@pytest.mark.parametrize("line", ["why?", "[]", "3", '{"question": "why?"}', '{"turns": []}', '{"turns": [1]}'])
def test_a_line_that_is_not_a_question_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.jsonl", "x", "x")
    with path.open("a") as file:
        file.write(line + "\n")
    with raises(DataError, snapshot('Line 4 of TMP/a.jsonl is not a question. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)

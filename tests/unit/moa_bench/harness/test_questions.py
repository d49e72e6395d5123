"""Questions from files: categories, what is refused with its line, and how they become prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.questions import (
    PACKAGED,
    SURE_QUESTIONS,
    BenchQuestion,
    chat_tokens,
    questions_of,
    read_all,
)
from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer

from tests.support.messages import raises


def write(path: Path, *categories: str) -> Path:
    lines = [
        {"question_id": number, "category": category, "turns": [f"{path.stem} {number}", "more"]}
        for number, category in enumerate(categories)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


def test_a_line_names_its_category_and_a_file_without_any_does(tmp_path: Path) -> None:
    path = write(tmp_path / "mt_bench.jsonl", "writing", "math", "")
    assert read_all(path) == [
        BenchQuestion("writing", "mt_bench 0"),
        BenchQuestion("math", "mt_bench 1"),
        BenchQuestion("mt_bench", "mt_bench 2"),
    ]


def test_spec_bench_has_its_own_tasks(tmp_path: Path) -> None:
    path = write(tmp_path / "question.jsonl", "writing", "math", "translation", "rag", "math_reasoning")
    assert [each.category for each in read_all(path)] == [
        "mt_bench",
        "mt_bench",
        "translation",
        "rag",
        "math_reasoning",
    ]


def test_files_of_a_folder_are_categories_and_take_turns(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", "math", "math")
    write(tmp_path / "qa.jsonl", "qa")
    assert [(each.category, each.text) for each in read_all(tmp_path)] == [
        ("gsm8k", "gsm8k 0"),
        ("qa", "qa 0"),
        ("gsm8k", "gsm8k 1"),
    ]


def test_what_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with raises(
        NotFoundError,
        snapshot("There are no questions at TMP/nowhere. Name a file of JSON lines, or a folder of such."),
    ):
        read_all(tmp_path / "nowhere")
    with raises(DataError, snapshot('TMP holds no questions. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)


@pytest.mark.parametrize("line", ["why?", "[]", "3", '{"question": "why?"}', '{"turns": []}', '{"turns": [1]}'])
def test_a_line_that_is_not_a_question_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.jsonl", "x", "x")
    with path.open("a") as file:
        file.write(line + "\n")
    with raises(DataError, snapshot('Line 4 of TMP/a.jsonl is not a question. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe")
    with raises(DataError, snapshot("TMP/a.jsonl cannot be read as text. Name a file of JSON lines in UTF-8.")):
        read_all(tmp_path)


def test_the_package_has_forty_questions_of_each_kind_which_take_turns() -> None:
    asked = read_all(PACKAGED)
    assert len(set(questions_of())) == len(asked) == 120
    assert [each.category for each in asked] == ["gsm8k", "humaneval", "mt_bench"] * 40
    assert all(f"`{file.name}`" in (PACKAGED / "LICENCES.md").read_text("utf-8") for file in PACKAGED.glob("*.jsonl"))


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


def test_a_model_without_a_chat_template_is_asked_in_plain_text(tokenizer: Tokenizer) -> None:
    question = SURE_QUESTIONS[0]
    assert tokenizer.decode(chat_tokens(tokenizer, question)).endswith("<|im_start|>assistant\n")
    bare = Tokenizer(tokenizer._described)
    assert bare.decode(chat_tokens(bare, question)) == f"{question}\n"

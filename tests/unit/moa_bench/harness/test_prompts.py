"""Prompts of a wanted length."""

from __future__ import annotations

from pathlib import Path

import pytest
from moa_bench.harness.prompts import QUESTIONS, chat_tokens, question_of, questions_of
from moa_shared.errors import DataError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


@pytest.mark.parametrize("length", [50, 256, 500])
def test_a_question_has_the_length_asked_for(tokenizer: Tokenizer, length: int) -> None:
    assert abs(len(chat_tokens(tokenizer, question_of(tokenizer, length))) - length) <= length // 20


@pytest.mark.parametrize("length", [5, 5000])
def test_a_length_that_cannot_be_had_is_refused(tokenizer: Tokenizer, length: int) -> None:
    with pytest.raises(DataError, match=f"nearest to {length} tokens has"):
        question_of(tokenizer, length)


def test_questions_are_all_different() -> None:
    assert len(set(QUESTIONS)) == len(QUESTIONS)


def test_questions_of_a_folder_take_turns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"turns": ["a one", "not asked"]}\n{"turns": ["a two"]}\n')
    (tmp_path / "b.jsonl").write_text('{"category": "x", "turns": ["b one"]}\n')
    assert questions_of(tmp_path) == ["a one", "b one", "a two"]
    assert questions_of(tmp_path / "b.jsonl") == ["b one"]

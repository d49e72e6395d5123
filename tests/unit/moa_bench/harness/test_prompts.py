"""Questions as prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
from moa_bench.harness.prompts import SURE_QUESTIONS, chat_tokens, questions_of
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


def test_a_model_without_a_chat_template_is_asked_in_plain_text(tokenizer: Tokenizer) -> None:
    question = SURE_QUESTIONS[0]
    assert tokenizer.decode(chat_tokens(tokenizer, question)).endswith("<|im_start|>assistant\n")
    bare = Tokenizer(tokenizer._described)
    assert bare.decode(chat_tokens(bare, question)) == f"{question}\n"


def test_questions_are_all_different() -> None:
    assert len(set(questions_of())) == len(questions_of()) == 120


def test_questions_of_a_folder_take_turns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"turns": ["a one", "not asked"]}\n{"turns": ["a two"]}\n')
    (tmp_path / "b.jsonl").write_text('{"category": "x", "turns": ["b one"]}\n')
    assert questions_of(tmp_path) == ["a one", "b one", "a two"]
    assert questions_of(tmp_path / "b.jsonl") == ["b one"]

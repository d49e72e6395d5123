from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles
from moa_training.data.text import read_questions, reference_result, stated_result


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("3 and 4 are 7.", "7"),
        ("It costs $1,234.50 in all", "1234.50"),
        ("from 5 to -2", "-2"),
        ("10-3", "3"),
        ("f(2)-3", "3"),
        ("#### 18\nThat was step 2.", "18"),
        ("so \\boxed{\\$42} of 50", "42"),
        ("#### none, but 6", "6"),
        ("no number", None),
        ("", None),
    ],
)
def test_a_text_states_its_marked_or_its_last_number(text: str, result: str | None) -> None:
    assert stated_result(text) == (None if result is None else Decimal(result))


@pytest.mark.parametrize(
    ("row", "result"),
    [
        ({"final_answer": "1,080"}, 1080),
        ({"final_answer": 7}, 7),
        ({"final_answer": "3", "reference": ["#### 4"]}, 3),
        ({"reference": ["2+2 = <<2+2=4>>4\n#### 4"]}, 4),
        ({"reference": ["Lithium has 3 protons."]}, None),
        ({"reference": []}, None),
        ({"reference": "#### 4"}, None),
        ({"reference": [None]}, None),
        ({}, None),
    ],
)
def test_only_marked_references_name_a_result(row: dict[str, Any], result: int | None) -> None:
    assert reference_result(row) == result


def test_questions_that_cannot_be_asked_are_counted(tmp_path: Path, files: ModelFiles) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"category": "a", "turns": ["w1"]}\nnot json\n{"turns": []}\n'
        + json.dumps({"category": "a", "turns": ["w1 " * 60]})
    )
    questions, left_out = read_questions(path, files, None, 30)
    assert (len(questions), left_out) == (1, 3)
    path.write_text("{}\n")
    with pytest.raises(DataError):
        read_questions(path, files, None, 30)
    with pytest.raises(NotFoundError):
        read_questions(tmp_path / "none", files, None, 30)

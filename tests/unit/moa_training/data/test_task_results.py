from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from moa_training.data.task_results import reference_result, stated_result


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

"""The tables: a row for each way and number of users, and how many users a speed allows."""

from __future__ import annotations

from typing import Any

from moa_bench.capacity import tables
from moa_bench.capacity.figures import Met
from moa_bench.capacity.suite import CapacityEffort, Cell


def met(tokens_per_s: float, slowest: float) -> Met:
    return Met(tokens_per_s, 20.0, 40.0, 100.0, 900.0, 1.0, 0.98, slowest, slowest + 1, 8, 2)


def test_a_row_for_each_cell_and_the_users_at_each_speed(facts: dict[str, Any]) -> None:
    cells = [
        Cell(1, None, met(40.0, 40.0), 0.01, 0),
        Cell(1, 0.8, met(60.0, 60.0), 0.02, 0),
        Cell(16, None, met(160.0, 7.5), 0.1, 1),
        Cell(16, 0.8, met(240.0, 20.0), 0.5, 0),
    ]
    text = tables.render(facts | {"level": "int8", "effort": CapacityEffort(), "cells": cells})
    assert "Prompts of 50 to 4000 tokens, answers of 64, no thinking, int8." in text
    assert "text written for the same prompt before: 1." in text
    assert "| plain | 16 | 160 | 4.00 | 20 | 40 | 100 | 900 | 8.5 | 7.5 | 0.980 | 2 | 1.00 | 10 % |" in text
    assert "| plain | at least 16 | 14.8 | 12.5 |" in text
    assert "| drafts, acceptance 0.8 | at least 16 | at least 16 | at least 16 |" in text


def test_without_a_lone_user_there_is_no_ratio(facts: dict[str, Any]) -> None:
    cells = [Cell(4, None, met(100.0, 4.0), 0.1, 0)]
    text = tables.render(facts | {"level": "int8", "effort": CapacityEffort(think_seconds=2.5), "cells": cells})
    assert "2.5 s of thinking" in text
    assert "| plain | 4 | 100 |  | 20 |" in text
    assert "| plain | not one | not one | not one |" in text

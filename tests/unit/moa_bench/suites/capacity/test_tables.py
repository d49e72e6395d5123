"""The tables: a row for each way and number of users, and how many users a speed allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from moa_bench.suites.capacity import CapacityEffort, tables
from moa_bench.users.figures import UsersCell, UserStats
from moa_bench.users.strategies import Strategy

PLAIN, ORACLE, SHIPPED = Strategy("plain"), Strategy("oracle", 0.8), Strategy("shipped")


def met(tokens_per_s: float, slowest: float, gap_p95_ms: float = 40.0) -> UserStats:
    return UserStats(tokens_per_s, 20.0, gap_p95_ms, 100.0, 900.0, 1.0, 0.98, slowest, slowest, 8, 2)


@pytest.fixture
def result(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {
        "level": "int8", "effort": CapacityEffort(), "links": ["loopback"], "drafter": "shipped, N = 3",
    }  # fmt: skip


def test_a_row_for_each_cell_and_the_users_at_each_speed(result: dict[str, Any]) -> None:
    cells = [
        UsersCell(1, PLAIN, met(50.0, 50.0), 0.01, 0),  # a forward of 20 ms
        UsersCell(1, ORACLE, met(60.0, 60.0), 0.02, 0),
        UsersCell(1, SHIPPED, met(55.0, 55.0), 0.02, 0),
        UsersCell(16, PLAIN, met(200.0, 12.5), 0.1, 1),  # of 80: 4 for each row more
        UsersCell(16, ORACLE, met(240.0, 20.0, 60.0), 0.5, 0),
        UsersCell(16, SHIPPED, met(240.0, 20.0, 60.0), 0.5, 0),
    ]
    text = tables.render(result | {"cells": cells})
    assert "Prompts of 50 to 4000 tokens, answers of 64, no thinking, int8, links: loopback." in text
    assert "text written for the same prompt before: 1." in text
    assert "| plain | 16 | 200 | 4.00 | 20 | 40 | 1.00 | 100 | 900 | 12.5 | 12.5 | 0.980 | 2 | 1.00 | 10 % |" in text
    assert "| devices' drafts, acceptance 0.8 | 16 | 240 | 4.00 | 20 | 60 | 1.50 | 100 | 900 | 20.0 | 20.0 |" in text
    assert "| devices' drafts, shipped drafter | 16 | 240 | 4.36 | 20 | 60 | 1.50 | 100 | 900 | 20.0 | 20.0 |" in text
    assert "| plain | at least 16 | at least 16 | 12.7 |  |" in text
    assert "| devices' drafts, shipped drafter | at least 16 | at least 16 | at least 16 |  |" in text


def test_without_a_lone_user_there_is_no_ratio(result: dict[str, Any]) -> None:
    cells = [UsersCell(4, PLAIN, met(100.0, 4.0), 0.1, 0)]
    effort = CapacityEffort(think_seconds=2.5)
    text = tables.render(result | {"effort": effort, "cells": cells})
    assert "2.5 s of thinking" in text
    assert "| plain | 4 | 100 |  | 20 |" in text
    assert "| plain | not one | not one | not one |  |" in text


def test_a_time_that_prompts_have_taken_is_said(result: dict[str, Any]) -> None:
    hungry = replace(met(18.0, 4.9), unserved=12)
    text = tables.render(result | {"cells": [UsersCell(4, PLAIN, met(40.0, 10.0), 0.1, 0)] * 2})
    assert "--prompt-tokens" in text  # two of four
    text = tables.render(result | {"cells": [UsersCell(16, PLAIN, each, 0.1, 0) for each in (hungry, met(40.0, 10.0))]})
    assert "In 1 of 2 rows half of the users or more had no text when the 16 s were over (12 of 16 at most)" in text
    assert "no text" not in tables.render(result | {"cells": [UsersCell(16, PLAIN, met(40.0, 10.0), 0.1, 0)]})


def test_users_at_a_speed_are_compared_with_plain_serving(result: dict[str, Any]) -> None:
    cells = [
        UsersCell(4, PLAIN, met(40.0, 10.0), 0.1, 0),
        UsersCell(4, ORACLE, met(60.0, 15.0), 0.1, 0),
        UsersCell(16, PLAIN, met(32.0, 2.0), 0.1, 0),
        UsersCell(16, ORACLE, met(96.0, 6.0), 0.1, 0),
    ]
    text = tables.render(result | {"cells": cells})
    assert "| plain | 7 | 4 | not one | 1.00 |" in text
    assert "| devices' drafts, acceptance 0.8 | at least 16 | 8 | 4 | at least 2.29 |" in text

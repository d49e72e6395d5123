"""The picture of many users: what the closed form adds to it, and that it is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_bench.suites.capacity.picture import draw, form_tokens_per_s
from moa_bench.users.closed_form import ForwardTimes
from moa_bench.users.figures import UsersCell, UserStats
from moa_bench.users.strategies import Strategy

PLAIN, ORACLE, SERVER = Strategy("plain"), Strategy("oracle", 0.8), Strategy("server")


def cell(users: int, way: Strategy, speed: float) -> UsersCell:
    return UsersCell(
        users, way, UserStats(users * speed, 20.0, 40.0, 100.0, 900.0, 1.0, 0.98, speed, speed, 8, 0), 0.1, 0
    )


def test_the_closed_form_is_of_each_user_and_only_where_acceptance_is_known() -> None:
    times = ForwardTimes(20.0, 4.0)
    plain = form_tokens_per_s(PLAIN, [cell(1, PLAIN, 1.0), cell(6, PLAIN, 1.0)], times)
    assert plain == [pytest.approx(50.0), pytest.approx(25.0)]
    assert form_tokens_per_s(ORACLE, [cell(1, ORACLE, 1.0)], times)[0] > 60
    assert form_tokens_per_s(SERVER, [cell(1, SERVER, 1.0)], times) == []
    assert form_tokens_per_s(PLAIN, [cell(1, PLAIN, 1.0)], None) == []


@pytest.mark.parametrize("numbers", [(1, 16), (4,)])
def test_it_is_drawn(numbers: tuple[int, ...], facts: dict[str, Any], tmp_path: Path) -> None:
    cells = [cell(users, way, 50.0 / users) for users in numbers for way in (PLAIN, ORACLE, SERVER)]
    (picture,) = draw(facts | {"cells": cells, "name": "capacity"}, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")

"""The picture of many users is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_bench.suites.capacity.picture import draw
from moa_bench.users.figures import UsersCell, UserStats
from moa_bench.users.strategies import Strategy

PLAIN, ORACLE, SERVER = Strategy("plain"), Strategy("oracle", 0.8), Strategy("server")


def cell(users: int, way: Strategy, speed: float) -> UsersCell:
    return UsersCell(
        users, way, UserStats(users * speed, 20.0, 40.0, 100.0, 900.0, 1.0, 0.98, speed, speed, 8, 0), 0.1, 0
    )


@pytest.mark.parametrize("numbers", [(1, 16), (4,)])
def test_it_is_drawn(numbers: tuple[int, ...], facts: dict[str, Any], tmp_path: Path) -> None:
    cells = [cell(users, way, 50.0 / users) for users in numbers for way in (PLAIN, ORACLE, SERVER)]
    (picture,) = draw(facts | {"cells": cells, "name": "capacity"}, tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")

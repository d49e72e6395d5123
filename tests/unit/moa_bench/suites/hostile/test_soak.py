"""A soak's growth: from the first reading to the last, and too much of it is an error unless the run was quick."""

from __future__ import annotations

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.hostile.soak.measure import WAYS, Soak, check
from moa_bench.suites.hostile.soak.tables import render
from moa_shared.errors import DataError

from tests.support.messages import raises

SOAK = Soak({50: 200.0, 100: 230.0, 150: 210.0}, {"Bye": 75, "a cut stream": 75}, 3)


def test_growth_is_that_of_the_last_reading_over_the_first() -> None:
    assert SOAK.growth == pytest.approx(0.05)
    assert Soak({50: 0.0, 100: 0.0}, {}, 0).growth == 0.0  # where the system does not say
    assert len(WAYS) == 7


def test_too_much_growth_is_an_error_unless_quick() -> None:
    check({"quick": True, "growth": 0.05})
    check({"quick": False, "growth": 0.02})
    with raises(DataError, snapshot("The server's memory has grown by 5.0%. Something of a session is kept.")):
        check({"quick": False, "growth": SOAK.growth})


def test_the_readings_are_shown() -> None:
    text = render({"soak": SOAK})
    assert text.startswith("Left: 75 by Bye, 75 by a cut stream; 3 times there was no room at first. Growth: +5.00%.")
    assert "| 100 | 230.0 |" in text

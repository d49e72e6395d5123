"""Speeds of an answer from the times at which its tokens came."""

from __future__ import annotations

import pytest
from moa_bench.harness.answers import TimedAnswer
from moa_shared.errors import DataError


@pytest.mark.parametrize(
    ("arrivals_s", "steady"),
    [((1.0, 1.5, 2.0), 2.0), ((1.0, 1.0, 2.0), 2.0), ((2.0, 2.0, 2.0), 1.5)],
)
def test_a_steady_speed_is_defined_for_an_answer_in_one_piece_too(arrivals_s: tuple[float, ...], steady: float) -> None:
    assert TimedAnswer((1, 2, 3), arrivals_s).steady_tokens_per_s == steady


def test_one_token_has_no_speed() -> None:
    with pytest.raises(DataError, match="one token"):
        _ = TimedAnswer((1,), (1.0,)).steady_tokens_per_s

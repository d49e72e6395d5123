"""Scores, and the choice among them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.sampling.scores import choose, largest, log_softmax


@given(st.sampled_from([1, 3, 1000, 16_384]), st.sampled_from([0.1, 3.0, 50.0]), st.integers(0, 999))
def test_log_softmax_is_that_of_float64_to_the_last_places(width: int, spread: float, seed: int) -> None:
    scores = np.float32(spread) * np.random.default_rng(seed).standard_normal((2, 3, width), np.float32)
    shifted = scores.astype(np.float64) - scores.max(-1, keepdims=True)
    exact = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    ours = log_softmax(scores)
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, exact, rtol=3e-7, atol=2e-6)


def test_what_is_excluded_stays_excluded_and_an_array_is_not_changed() -> None:
    scores = np.array([[0.0, -np.inf, 0.0]], np.float32)
    before = scores.copy()
    np.testing.assert_allclose(log_softmax(scores), [[-np.log(2), -np.inf, -np.log(2)]], rtol=1e-6)
    np.testing.assert_array_equal(scores, before)


@given(
    st.sampled_from([1, 2, 300, 511, 512, 5000]), st.sampled_from([1, 2, 16, 300]), st.booleans(), st.integers(0, 999)
)
def test_the_largest_come_first_and_equal_ones_by_column(width: int, count: int, coarse: bool, seed: int) -> None:
    scores = np.random.default_rng(seed).standard_normal((4, width), np.float32)
    if coarse:
        scores = np.round(scores)
    count = min(count, width)
    values, columns = largest(scores, count)
    expected = [[column for _, column in sorted(zip(-row, range(width), strict=True))][:count] for row in scores]
    assert columns.tolist() == expected
    np.testing.assert_array_equal(values, np.take_along_axis(scores, columns, axis=1))


@pytest.mark.parametrize("width", [5, 5000])
def test_a_row_without_numbers_has_columns_all_the_same(width: int) -> None:
    scores = np.full((2, width), np.nan, np.float32)
    scores[1, 3:] = -np.inf
    values, columns = largest(scores, 4)
    assert values.shape == columns.shape == (2, 4)
    assert len(set(columns[0].tolist())) == len(set(columns[1].tolist())) == 4


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def test_a_clear_winner_is_chosen() -> None:
    assert choose(row(1, 2, 3), row(0, 0, 0), 0, 1.0) == 2
    assert choose(row(1, 2, 3), row(0, 5, 0), 0, 1.0) == 1
    assert choose(row(1, 2, 3), row(0, 5, 0), 1, 1.0) == 2
    assert choose(row(1, 2, 3), row(0, 5, 0), 0, 0.1) == 2


def test_ties_and_edges_are_not_called() -> None:
    assert choose(row(1, 2, 2), row(0, 0, 0), 0, 1.0) is None
    assert choose(row(1, 2, 2), row(0, 0, 0), 2, 1.0) is None
    halves = row(0, 0, -50)
    assert choose(halves, row(0, 3, 0), 0, 0.5) is None  # is the second half within the first?
    assert choose(halves, row(3, 0, 0), 0, 0.5) == 0  # it could not win anyway
    assert choose(row(float("nan"), 1), row(0, 0), 0, 1.0) is None


def test_arguments_are_left_as_they_are() -> None:
    scores, noise = row(1, 2, 3), row(0, 1, 0)
    choose(scores, noise, 2, 0.9)
    choose(scores, noise, 0, 1.0)
    assert scores.tolist() == [1, 2, 3]
    assert noise.tolist() == [0, 1, 0]

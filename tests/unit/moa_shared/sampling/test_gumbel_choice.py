"""What is too near to call is left to the rule; `test_coupling` holds the choices themselves against it."""

from __future__ import annotations

import numpy as np
from moa_shared.sampling.gumbel_choice import choose


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

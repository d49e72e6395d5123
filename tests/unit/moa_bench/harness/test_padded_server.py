"""A padded target gives the inner one's rows, later."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from moa_bench.harness.padded_server import PaddedTarget
from moa_bench.harness.padding import Padding
from moa_server.target import Request
from moa_server.target.kernel_target import KernelTarget

PADDING = Padding(50.0, 2.0)


def test_rows_of_all_conversations_are_paid_for(make_target: Callable[[], KernelTarget]) -> None:
    inner, slept = make_target(), list[float]()
    padded = PaddedTarget(inner, PADDING, slept.append)
    requests = [Request(padded.new_cache(), [1, 2, 3], None, [2]), Request(padded.new_cache(), [4, 5], [-1, -1], [0])]
    outputs = padded.forward_all(requests)
    assert 0 < slept[0] <= 0.058  # less what the forward itself took
    alone = inner.forward(inner.new_cache(), [1, 2, 3], None, [2])
    assert np.array_equal(outputs[0].logits, alone.logits)
    assert padded.context_length == inner.context_length


def test_a_forward_that_takes_longer_by_itself_is_not_padded(make_target: Callable[[], KernelTarget]) -> None:
    slept = list[float]()
    padded = PaddedTarget(make_target(), Padding(1e-6, 0.0), slept.append)
    padded.forward(padded.new_cache(), [1])
    assert slept == [0.0]


@pytest.mark.parametrize(("rows", "seconds"), [(1, 0.05), (9, 0.066)])
def test_a_forward_costs_a_step_and_its_further_rows(rows: int, seconds: float) -> None:
    assert PADDING.seconds(rows) == pytest.approx(seconds)


def test_a_row_costs_a_fiftieth_unless_it_is_said() -> None:
    assert Padding.of(50.0, None) == Padding(50.0, 1.0)
    assert Padding.of(50.0, 0.0) == Padding(50.0, 0.0)
    assert Padding.of(None, None) is None
    assert Padding(50.0, 1.0).flags == ["--target-ms", "50.0", "--target-row-ms", "1.0"]

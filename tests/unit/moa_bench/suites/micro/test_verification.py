"""The shape of the measured trees, and one measurement on a tiny target."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.suites.micro.verification import TREE_DEPTH, draft_parents, measure_verification
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.tree.draft_tree import DraftTree


@given(st.integers(1, 100), st.integers(1, 10))
def test_trees_are_valid_and_as_deep_as_asked(nodes: int, depth: int) -> None:
    parents = draft_parents(nodes, depth)
    tree = DraftTree(tuple(range(nodes)), tuple(parents))
    assert max(tree.depths) == min(nodes, depth)
    assert tree.path_to(min(nodes, depth) - 1) == tuple(range(min(nodes, depth)))


@pytest.mark.parametrize("nodes", [7, 61])
def test_a_short_tree_is_a_chain_and_a_long_one_is_not(nodes: int) -> None:
    tree = DraftTree(tuple(range(nodes)), tuple(draft_parents(nodes, TREE_DEPTH)))
    assert tree.is_chain == (nodes <= TREE_DEPTH)


def test_chains_and_trees_are_measured_with_the_rows_that_they_accept(make_target: Callable[[], KernelTarget]) -> None:
    shapes: list[tuple[int, ...]] = []
    costs = measure_verification(
        make_target(), [1, 2, 3], lambda rows: shapes.append(np.shape(rows)), repeats=1, counts=(1, 16)
    )
    assert [(cost.shape, cost.tokens, cost.encoded_rows) for cost in costs] == [
        ("chain", 1, 1), ("chain", 16, 8), ("tree", 16, 8),
    ]  # fmt: skip
    assert {shape[0] for shape in shapes} == {1, 8}
    assert all(cost.bare_ms.median > 0 and cost.whole_ms.count == 1 for cost in costs)

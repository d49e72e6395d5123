"""The shape of the measured trees, and one measurement on a tiny target."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_bench.micro.verification import TREE_DEPTH, draft_parents
from moa_shared.tree import DraftTree


@settings(deadline=None)  # a busy machine is not a defect
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

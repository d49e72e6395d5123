"""Each function against its definition, spelled out node by node."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import TreeError
from moa_shared.tree import arithmetic
from moa_shared.tree.arithmetic import ROOT

any_parents = st.integers(0, 14).flatmap(lambda count: st.tuples(*(st.integers(ROOT, at - 1) for at in range(count))))


def ancestors(parents: tuple[int, ...], node: int) -> list[int]:
    """The node and those above it, from the top."""
    return [] if node == ROOT else [*ancestors(parents, parents[node]), node]


def drawn_node(data: st.DataObject, parents: tuple[int, ...]) -> int:
    return data.draw(st.integers(ROOT, len(parents) - 1))


@given(st.lists(st.integers(-3, 8), max_size=8), st.integers(0, 3))
def test_parents_are_earlier_nodes_or_the_root(parents: list[int], first: int) -> None:
    wrong = [node for node, parent in enumerate(parents, first) if parent not in range(ROOT, node)]
    if not wrong:
        arithmetic.check_parents(parents, first)
        return
    parent = parents[wrong[0] - first]
    with pytest.raises(TreeError, match=rf"Node {wrong[0]} of a draft tree has parent {parent}, expected -1 to"):
        arithmetic.check_parents(parents, first)


@given(any_parents, st.integers(0, 3))
def test_a_chain_follows_the_node_before_it(parents: tuple[int, ...], first: int) -> None:
    moved = [first + parent for parent in parents]
    assert arithmetic.is_chain(moved, first) == (moved == list(range(first - 1, first - 1 + len(parents))))


@given(any_parents, st.data())
def test_a_depth_counts_the_nodes_down_to_it(parents: tuple[int, ...], data: st.DataObject) -> None:
    known = data.draw(st.integers(0, len(parents)))
    depths = [len(ancestors(parents, node)) for node in range(known)]
    arithmetic.add_depths(depths, parents[known:])
    assert depths == [len(ancestors(parents, node)) for node in range(len(parents))]


@given(any_parents, st.data())
def test_a_path_leads_from_the_top_to_the_node(parents: tuple[int, ...], data: st.DataObject) -> None:
    node, first = drawn_node(data, parents), data.draw(st.integers(0, 14))
    assert arithmetic.path_to(parents, node) == ancestors(parents, node)
    assert arithmetic.path_to(parents, node, first) == [above for above in ancestors(parents, node) if above >= first]


@given(any_parents)
def test_a_row_sees_its_ancestors_and_itself(parents: tuple[int, ...]) -> None:
    seen = arithmetic.ancestor_matrix(parents)
    assert seen.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert np.flatnonzero(seen[node]).tolist() == ancestors(parents, node)


@given(any_parents, st.integers(0, 4))
def test_a_tree_below_a_chain(parents: tuple[int, ...], length: int) -> None:
    whole = arithmetic.below_chain(length, parents)
    arithmetic.check_parents(whole)
    assert arithmetic.is_chain(whole[:length])
    nodes, below = arithmetic.subtree(whole, length - 1)
    assert (nodes, tuple(below)) == (list(range(length, length + len(parents))), parents)


@given(any_parents, st.data())
def test_picked_nodes_keep_their_parents(parents: tuple[int, ...], data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, len(parents) - 1))) if parents else set()
    nodes = sorted({above for node in wanted for above in ancestors(parents, node)})
    picked = arithmetic.pick(parents, nodes)
    assert [ROOT if parent == ROOT else nodes[parent] for parent in picked] == [parents[node] for node in nodes]


@given(any_parents, st.data())
def test_a_subtree_holds_the_nodes_whose_path_leads_through_its_root(
    parents: tuple[int, ...], data: st.DataObject
) -> None:
    root = drawn_node(data, parents)
    first = data.draw(st.integers(0, max(root, 0)))
    most = data.draw(st.none() | st.integers(0, 5))
    path = ancestors(parents, root)
    below = [node for node in range(len(parents)) if node != root and ancestors(parents, node)[: len(path)] == path][
        :most
    ]
    nodes, moved = arithmetic.subtree(parents[first:], root, first, most)
    assert nodes == below
    assert [root if parent == ROOT else nodes[parent] for parent in moved] == [parents[node] for node in nodes]


def test_nodes_below_what_is_not_at_hand_are_in_no_subtree() -> None:
    assert arithmetic.subtree([1, 0, 4], 4, 5) == ([7], [ROOT])
    assert arithmetic.subtree([1, 0, 4], ROOT, 5) == ([], [])

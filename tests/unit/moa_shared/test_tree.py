"""The draft tree: each function of its parents against its definition, spelled out node by node; and as it is streamed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_server.engine.stepper import below_chain
from moa_shared.errors import TokenRangeError, TreeError
from moa_shared.tree import (
    ROOT,
    DraftTree,
    StreamedTree,
    add_depths,
    ancestor_matrix,
    check_parents,
    check_tokens,
    is_chain,
    longest_path,
    path_to,
    subtree,
)

from tests.support.messages import raises

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
        check_parents(parents, first)
        return
    parent = parents[wrong[0] - first]
    with pytest.raises(TreeError, match=rf"Node {wrong[0]} of a draft tree has parent {parent}, expected -1 to"):
        check_parents(parents, first)


@given(any_parents, st.integers(0, 3))
def test_a_chain_follows_the_node_before_it(parents: tuple[int, ...], first: int) -> None:
    moved = [first + parent for parent in parents]
    assert is_chain(moved, first) == (moved == list(range(first - 1, first - 1 + len(parents))))


@given(any_parents, st.data())
def test_a_depth_counts_the_nodes_down_to_it(parents: tuple[int, ...], data: st.DataObject) -> None:
    known = data.draw(st.integers(0, len(parents)))
    depths = [len(ancestors(parents, node)) for node in range(known)]
    add_depths(depths, parents[known:])
    assert depths == [len(ancestors(parents, node)) for node in range(len(parents))]


@given(any_parents, st.data())
def test_a_path_leads_from_the_top_to_the_node(parents: tuple[int, ...], data: st.DataObject) -> None:
    node, first = drawn_node(data, parents), data.draw(st.integers(0, 14))
    assert path_to(parents, node) == ancestors(parents, node)
    assert path_to(parents, node, first) == [above for above in ancestors(parents, node) if above >= first]


@given(any_parents)
def test_a_row_sees_its_ancestors_and_itself(parents: tuple[int, ...]) -> None:
    seen = ancestor_matrix(parents)
    assert seen.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        assert np.flatnonzero(seen[node]).tolist() == ancestors(parents, node)


@given(any_parents, st.integers(0, 4))
def test_a_tree_below_a_chain(parents: tuple[int, ...], length: int) -> None:
    whole = below_chain(length, parents)
    check_parents(whole)
    assert is_chain(whole[:length])
    nodes, below = subtree(whole, length - 1)
    assert (nodes, tuple(below)) == (list(range(length, length + len(parents))), parents)


@given(any_parents, st.data())
def test_picked_nodes_keep_their_parents(parents: tuple[int, ...], data: st.DataObject) -> None:
    wanted = data.draw(st.sets(st.integers(0, len(parents) - 1))) if parents else set()
    nodes = sorted({above for node in wanted for above in ancestors(parents, node)})
    picked = DraftTree(parents, parents).pick(nodes).parents
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
    nodes, moved = subtree(parents[first:], root, first, most)
    assert nodes == below
    assert [root if parent == ROOT else nodes[parent] for parent in moved] == [parents[node] for node in nodes]


def test_nodes_below_what_is_not_at_hand_are_in_no_subtree() -> None:
    assert (subtree([1, 0, 4], 4, 5), subtree([1, 0, 4], ROOT, 5)) == (([7], [ROOT]), ([], []))


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12, vocab: int = 4) -> DraftTree:
    count = draw(st.integers(0, max_nodes))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return DraftTree(tuple(draw(st.integers(0, vocab - 1)) for _ in range(count)), parents)


@given(trees(), st.data())
def test_the_longest_path_is_where_every_token_was_chosen(tree: DraftTree, data: st.DataObject) -> None:
    chosen = [data.draw(st.integers(0, 3)) for _ in range(len(tree) + 1)]
    path, bonus = longest_path(tree, chosen[0], chosen[1:])
    node = ROOT
    for step in path:
        assert (tree.parents[step], tree.tokens[step]) == (node, chosen[node + 1])
        node = step
    assert bonus == chosen[node + 1]
    assert tree.child_with(node, bonus) is None


def test_of_equal_siblings_the_first_is_taken_and_token_zero_is_one_like_any_other() -> None:
    # The authors pad short leaves with token 0 and then accept a target token 0 on the padding.
    assert longest_path(DraftTree((5, 6, 7), (-1, 0, -1)), 7, [0, 0, 0]) == ([2], 0)
    assert longest_path(DraftTree((5, 5, 6), (-1, -1, 1)), 5, [6, 6, 6]) == ([0], 6)


def test_bounds_are_checked() -> None:
    check_tokens([0, 9], 10)
    with raises(
        TokenRangeError, snapshot("Token 1 is 10, outside the vocabulary (0 to 9). Use the server's tokenizer.")
    ):
        check_tokens([1, 10], 10)
    with pytest.raises(TreeError, match="A draft tree has 2 tokens but 1 parents"):
        DraftTree((1, 2), (-1,))
    with pytest.raises(TreeError, match=r"Node 1 .* parent 5"):
        DraftTree((1, 1), (-1, 5))


def test_a_path_is_added_where_the_tree_lacks_it() -> None:
    tree = DraftTree((1, 2, 3), (-1, 0, -1))
    assert tree.with_path([1, 2]) is tree
    assert tree.with_path([]) is tree
    assert tree.with_path([1, 4, 5]) == DraftTree((1, 2, 3, 4, 5), (-1, 0, -1, 0, 3))


@given(trees(), st.data())
def test_what_is_forgotten_changes_nothing_below_the_reached_node(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    held = data.draw(st.integers(node + 1, len(tree)))  # the node that was reached has come
    streamed = StreamedTree(tree.tokens[:held], tree.parents[:held])
    streamed.forget(node)
    for token, parent in zip(tree.tokens[held:], tree.parents[held:], strict=True):
        streamed.append(token, parent)
    below, numbers = streamed.below(node)
    nodes, parents = subtree(tree.parents, node)
    assert below == DraftTree(tuple(tree.tokens[at] for at in nodes), tuple(parents))
    assert [tree.tokens[number] for number in numbers] == list(below.tokens)
    assert all(streamed.depth(number) == tree.depths[number] for number in numbers)
    assert all(streamed.child_with(node, token) == tree.child_with(node, token) for token in range(3))
    assert streamed.end == len(tree)
    most = data.draw(st.integers(0, 5))
    assert streamed.below(node, most)[0] == DraftTree(below.tokens[:most], below.parents[:most])


def test_nodes_keep_their_numbers_and_only_those_in_flight_are_held() -> None:
    streamed = StreamedTree()
    for number in range(100_000):
        streamed.append(number % 7, number - 1)
        streamed.forget(number - 10)
    assert (streamed.first, streamed.end, len(streamed)) == (99_989, 100_000, 11)
    assert (streamed.child_with(99_998, 99_999 % 7), len(streamed._children)) == (99_999, 11)
    assert streamed.since(99_998) == ((99_998 % 7, 99_999 % 7), (99_997, 99_998))


def test_a_node_below_what_is_forgotten_leads_nowhere() -> None:
    streamed = StreamedTree([4, 5, 6], [-1, 0, 1])
    streamed.forget(2)
    streamed.append(7, 0)
    streamed.append(8, 3)
    streamed.append(9, ROOT)
    streamed.append(1, 2)
    assert [streamed.depth(node) for node in (3, 4, 5, 6)] == [0, 0, 0, 4]
    assert streamed.below(2) == (DraftTree((1,), (ROOT,)), (6,))

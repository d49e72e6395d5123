"""The draft in flight, held from where it was confirmed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree
from moa_shared.tree.streamed_tree import StreamedTree


@st.composite
def trees(draw: st.DrawFn) -> DraftTree:
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=14))
    return DraftTree(tuple(tokens), tuple(draw(st.integers(ROOT, node - 1)) for node in range(len(tokens))))


@given(trees(), st.data())
def test_what_is_forgotten_changes_nothing_below_the_reached_node(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    held = data.draw(st.integers(node + 1, len(tree)))  # the node that was reached has come
    streamed = StreamedTree(tree.tokens[:held], tree.parents[:held])
    streamed.forget(node)
    for token, parent in zip(tree.tokens[held:], tree.parents[held:], strict=True):
        streamed.append(token, parent)
    below, numbers = streamed.below(node)
    assert below == tree.subtree(node)
    assert [tree.tokens[number] for number in numbers] == list(below.tokens)
    assert all(streamed.depth(number) == tree.depths[number] for number in numbers)
    assert all(streamed.child_with(node, token) == tree.child_with(node, token) for token in range(3))
    assert streamed.end == len(tree)
    most = data.draw(st.integers(0, 5))
    assert streamed.below(node, most)[0] == below.prefix(most)


def test_nodes_keep_their_numbers_and_only_those_in_flight_are_held() -> None:
    streamed = StreamedTree()
    for number in range(100_000):
        streamed.append(number % 7, number - 1)
        streamed.forget(number - 10)
    assert (streamed.first, streamed.end, len(streamed)) == (99_989, 100_000, 11)
    assert streamed.child_with(99_998, 99_999 % 7) == 99_999
    assert len(streamed._children) == 11
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

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_shared.errors import TokenRangeError, TreeError
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree, check_tokens, longest_path

from tests.support.messages import raises
from tests.support.touched_tokens import TouchedTokens


@st.composite
def trees(draw: st.DrawFn, max_nodes: int = 12, vocab: int = 4) -> DraftTree:
    count = draw(st.integers(0, max_nodes))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(count))
    return DraftTree(tuple(draw(st.integers(0, vocab - 1)) for _ in range(count)), parents)


@given(trees())
def test_ancestors_are_the_nodes_on_the_path(tree: DraftTree) -> None:
    seen = tree.ancestor_matrix()
    for node in range(len(tree)):
        assert tuple(seen[node].nonzero()[0]) == tree.path_to(node)
        assert len(tree.path_to(node)) == tree.depths[node]


@given(trees(), st.data())
def test_a_subtree_holds_the_same_continuations(tree: DraftTree, data: st.DataObject) -> None:
    node = data.draw(st.integers(-1, len(tree) - 1))
    below = tree.subtree(node)
    prefix = tree.path_to(node)

    def texts(some: DraftTree) -> list[tuple[int, ...]]:
        return [tuple(some.tokens[step] for step in some.path_to(leaf)) for leaf in range(len(some))]

    expected = [
        tuple(tree.tokens[step] for step in tree.path_to(other)[len(prefix) :])
        for other in range(len(tree))
        if other != node and tree.path_to(other)[: len(prefix)] == prefix
    ]
    assert texts(below) == expected


@given(trees(), st.data())
def test_the_longest_path_is_where_every_token_was_chosen(tree: DraftTree, data: st.DataObject) -> None:
    chosen = [data.draw(st.integers(0, 3)) for _ in range(len(tree) + 1)]
    path, bonus = longest_path(tree, chosen[0], chosen[1:])
    node = ROOT
    for step in path:
        assert tree.parents[step] == node
        assert tree.tokens[step] == chosen[node + 1]
        node = step
    assert bonus == chosen[node + 1]
    assert tree.child_with(node, bonus) is None


def test_token_zero_is_a_token_like_any_other() -> None:
    # The authors pad short leaves with token 0 and then accept a target token 0 on the padding.
    tree = DraftTree((5, 6, 7), (-1, 0, -1))
    assert longest_path(tree, 7, [0, 0, 0]) == ([2], 0)


def test_equal_siblings_lead_to_the_first() -> None:
    assert longest_path(DraftTree((5, 5, 6), (-1, -1, 1)), 5, [6, 6, 6]) == ([0], 6)


@pytest.mark.parametrize("parents", [(0,), (-2,), (-1, 1), (-1, 5)])
def test_parents_after_their_children_are_refused(parents: tuple[int, ...]) -> None:
    with pytest.raises(TreeError, match=f"Node {len(parents) - 1} .* parent {parents[-1]}"):
        DraftTree((1,) * len(parents), parents)


def test_bounds_are_checked() -> None:
    with raises(TreeError, snapshot("A draft tree has 2 nodes, more than the 1 allowed. Send smaller drafts.")):
        DraftTree.chain([1, 2]).validate(vocab_size=10, max_nodes=1)
    with raises(
        TokenRangeError, snapshot("Token 1 is 10, outside the vocabulary (0 to 9). Use the server's tokenizer.")
    ):
        DraftTree.chain([1, 10]).validate(vocab_size=10, max_nodes=8)
    with pytest.raises(TreeError, match="A draft tree has 2 tokens but 1 parents"):
        DraftTree((1, 2), (-1,))


@pytest.mark.parametrize("tokens", [[-1], [3, 10], [0, 9, 1 << 40]])
def test_tokens_outside_the_vocabulary_are_named(tokens: list[int]) -> None:
    with pytest.raises(TokenRangeError, match=rf"Token {len(tokens) - 1} is {tokens[-1]}, outside"):
        check_tokens(tokens, 10)


def test_tokens_are_checked_as_a_whole() -> None:
    tokens = TouchedTokens(1_000_000)
    check_tokens(tokens, 2)
    assert tokens.touched == 0
    with raises(
        TokenRangeError, snapshot("Token 0 is 1, outside the vocabulary (0 to 0). Use the server's tokenizer.")
    ):
        check_tokens(tokens, 1)
    assert tokens.touched == 1


def test_a_path_is_added_where_the_tree_lacks_it() -> None:
    tree = DraftTree((1, 2, 3), (-1, 0, -1))
    assert tree.with_path([1, 2]) is tree
    assert tree.with_path([]) is tree
    assert tree.with_path([1, 4, 5]) == DraftTree((1, 2, 3, 4, 5), (-1, 0, -1, 0, 3))

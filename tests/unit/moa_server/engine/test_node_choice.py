"""Which draft nodes are verified: as many as a search over all of them would take, and always a tree."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.engine.node_choice import NodeChoice
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree


def measured(plain_ms: float, node_ms: float, right: list[bool]) -> NodeChoice:
    """A choice that has seen forwards of this cost, and drafts that were right or not."""
    choice = NodeChoice(64)
    draft = DraftTree((1, 2, 3), (-1, -1, 0))
    for hit in right:
        choice.on_step(plain_ms, 0, draft, [1 if hit else 9])
        choice.on_step(plain_ms + 8 * node_ms, 8, draft, [1 if hit else 2])
    return choice


def worth(choice: NodeChoice, tree: DraftTree, nodes: tuple[int, ...]) -> float:
    survival = choice.acceptance.survival(tree)
    return sum(survival[node] for node in nodes) - choice.rate * choice.cost.ms(len(nodes))


def parents(size: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(ROOT, node - 1) for node in range(size)))


@given(
    st.integers(0, 9).flatmap(parents),
    st.floats(10.0, 100.0),
    st.floats(0.0, 30.0),
    st.lists(st.booleans(), min_size=1, max_size=30),
)
def test_no_other_nodes_are_worth_more(
    shape: tuple[int, ...], plain_ms: float, node_ms: float, right: list[bool]
) -> None:
    choice = measured(plain_ms, node_ms, right)
    tree = DraftTree(tuple(range(len(shape))), shape)
    chosen = choice.choose(tree)
    kept = chosen.tokens  # the tokens are the nodes' numbers
    assert all(tree.parents[node] == ROOT or tree.parents[node] in kept for node in kept)
    best = max(
        worth(choice, tree, nodes)
        for size in range(len(tree) + 1)
        for nodes in combinations(range(len(tree)), size)
        if all(tree.parents[node] == ROOT or tree.parents[node] in nodes for node in nodes)
    )
    assert worth(choice, tree, kept) == pytest.approx(best)


def test_before_anything_is_measured_everything_is_verified() -> None:
    assert NodeChoice(3).choose(DraftTree.chain([1, 2, 3, 4])) == DraftTree.chain([1, 2, 3])


def test_a_drafter_that_is_always_wrong_gets_plain_steps() -> None:
    choice = NodeChoice(64)
    for _ in range(100):
        choice.on_step(50.0, 0, DraftTree.chain([1, 2, 3]), [9])
    assert choice.choose(DraftTree.chain([1, 2, 3])) == DraftTree((), ())


def test_a_drafter_that_is_always_right_gets_all_its_nodes_verified() -> None:
    choice = NodeChoice(64)
    for _ in range(50):
        choice.on_step(50.0, 0, DraftTree.chain([1, 2, 3]), [1])
        choice.on_step(53.0, 3, DraftTree.chain([1, 2, 3]), [1, 2, 3, 4])
    assert choice.choose(DraftTree.chain(list(range(20)))) == DraftTree.chain(list(range(20)))


def test_guesses_without_the_prompts_memory_are_not_counted() -> None:
    choice = NodeChoice(64)
    before = choice.acceptance.level.mean
    for _ in range(20):
        choice.on_step(50.0, 0, DraftTree.chain([5]), [7], blind=True)
    assert choice.acceptance.level.mean == before

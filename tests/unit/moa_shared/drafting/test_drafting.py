"""Chains, the dynamic tree, and a conversation's draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import CandidatePool, barred_after, draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT

VOCAB = 7
Rows = npt.NDArray[np.float32]


class ToyDrafter:
    """Logits that depend on the last two tokens of a path; checks that it is used as agreed."""

    most_depth: int | None = None

    def __init__(self, seed: int, token_ids: npt.NDArray[np.int64] | None = None) -> None:
        self.token_ids = token_ids
        self.tokens = [0, 1, 2, 1, 0]
        self.next_position = len(self.tokens)
        self._table = np.random.default_rng(seed).standard_normal((VOCAB + 1, VOCAB + 1, VOCAB), np.float32)
        self.paths: list[tuple[int, ...]] = []

    def _logits(self, path: Sequence[int]) -> Rows:
        before, last = ([VOCAB, VOCAB, *path])[-2:]
        row: Rows = self._table[before, last]
        return row

    def begin(self) -> Rows:
        self.paths = []
        return self._logits(())[None]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        known = len(self.paths)
        for token, parent in zip(tokens, parents, strict=True):
            assert -1 <= parent < known
            self.paths.append((*(self.paths[parent] if parent >= 0 else ()), token))
        return np.stack([self._logits(path) for path in self.paths[known:]])

    def score(self, path: Sequence[int]) -> float:
        return sum(float(log_softmax(self._logits(path[:at]))[token]) for at, token in enumerate(path))


@given(st.integers(0, 99), st.integers(0, 5))
def test_a_greedy_chain_takes_the_best_of_each_step(seed: int, length: int) -> None:
    drafter = ToyDrafter(seed)
    chain = draft_chain(drafter, length, Sampling())
    assert len(chain) == length
    path: list[int] = []
    for token in chain.tokens:
        assert token == int(drafter._logits(path).argmax())
        path.append(token)


@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 5), st.integers(1, 30))
def test_a_tree_holds_the_best_candidates_with_their_parents(seed: int, depth: int, breadth: int, nodes: int) -> None:
    drafter = ToyDrafter(seed)
    tree, pool, chosen = draft_tree(drafter, TreeShape(depth, breadth, nodes), Sampling())
    assert len(tree) == min(nodes, len(pool.tokens))
    assert max(tree.depths) <= depth
    worst = min(pool.scores[index] for index in chosen)
    assert all(pool.scores[index] <= worst + 1e-9 for index in range(len(pool.tokens)) if index not in chosen)
    for node, index in enumerate(chosen):
        path = [tree.tokens[step] for step in tree.path_to(node)]
        assert pool.scores[index] == pytest.approx(drafter.score(path), abs=1e-5)
    siblings = [(parent, token) for parent, token in zip(tree.parents, tree.tokens, strict=True)]
    assert len(set(siblings)) == len(siblings)


@given(st.integers(0, 50), st.floats(0.1, 2.0))
def test_a_sampled_trees_best_path_is_the_sampled_chain(seed: int, temperature: float) -> None:
    """Siblings share their position's noise, so the chain that the drafter would draw is in the tree."""
    sampling = Sampling(temperature, seed=seed, repeat_penalty=1.5, presence_penalty=0.5)
    chain = draft_chain(ToyDrafter(seed), 3, sampling)
    tree, _, _ = draft_tree(ToyDrafter(seed), TreeShape(3, VOCAB, 500), sampling)
    node: int | None = ROOT
    for token in chain.tokens:
        assert node is not None
        node = tree.child_with(node, token)
    assert node is not None


def test_tokens_outside_the_support_are_sent_after_the_choice() -> None:
    """The target may have them inside its own."""
    sampling = Sampling(1.0, top_k=1)
    tree, _, _ = draft_tree(ToyDrafter(1), TreeShape(3, 4, 50), sampling)
    assert tree.tokens[:4].index(draft_chain(ToyDrafter(1), 1, sampling).tokens[0]) == 0
    assert tree.parents[:4] == (ROOT,) * 4


def test_a_reduced_vocabulary_gives_the_targets_ids() -> None:
    ids = np.array([10, 20, 30, 40, 50, 60, 70])
    full, reduced = ToyDrafter(3), ToyDrafter(3, ids)
    reduced._logits = lambda path: full._logits([token // 10 - 1 for token in path])  # type: ignore[method-assign]
    assert [int(ids[token]) for token in draft_chain(full, 4, Sampling()).tokens] == list(
        draft_chain(reduced, 4, Sampling()).tokens
    )


def test_equal_scores_keep_parents_before_children() -> None:
    # The authors' bf16 scores tie, and a child is then chosen without its parent.
    pool = CandidatePool()
    first = pool.add(ROOT, [1, 2], [-1.0, -1.0])
    pool.add(first[1], [3], [0.0])
    pool.add(first[0], [4], [0.0])
    for nodes in range(1, 5):
        tree, chosen = pool.tree(nodes)
        assert len(tree) == nodes
        assert chosen == sorted(chosen)


texts = st.lists(st.integers(0, 2), max_size=40)


def test_what_would_close_a_run_is_barred() -> None:
    assert barred_after([1, 2, 3, 4, 1, 2, 3], run=4) == {4}
    assert barred_after([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], run=4) == {4, 5}
    assert barred_after([1, 2, 3, 4, 2, 2, 3], run=4) == frozenset()
    assert barred_after([], run=4) == frozenset()


@given(texts, st.integers(2, 5))
def test_no_run_is_written_twice(text: list[int], run: int) -> None:
    written: list[int] = []
    for token in text:
        if token not in barred_after(written, run):
            written.append(token)
    runs = [tuple(written[at : at + run]) for at in range(len(written) - run + 1)]
    assert len(runs) == len(set(runs))

"""Chains, the dynamic tree, a conversation's draft, and drafts of a drafter that guesses a whole block in one step."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.drafts import Candidates, TreeShape, draft_chain, draft_tree, find_candidates
from moa_shared.drafting.growing import CHAIN, GrowingDraft, Growth, GrowthShape, barred_after
from moa_shared.drafting.guesses import TextGuesser
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

from tests.support.counted import RecordingDrafter
from tests.unit.moa_shared.drafting.test_growing import ToyDrafter, survival

VOCAB = 7
Rows = npt.NDArray[np.float32]


@given(st.integers(0, 99), st.integers(0, 5))
def test_a_greedy_chain_takes_the_best_of_each_step(seed: int, length: int) -> None:
    drafter = ToyDrafter(seed)
    chain = draft_chain(drafter, length, Sampling())
    assert len(chain) == length
    path: list[int] = []
    for token in chain.tokens:
        assert token == int(drafter.logits([*drafter.text, *path]).argmax())
        path.append(token)


@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 5), st.integers(1, 30))
def test_a_tree_holds_the_best_candidates_with_their_parents(seed: int, depth: int, breadth: int, nodes: int) -> None:
    drafter = ToyDrafter(seed)
    pool = find_candidates(drafter, TreeShape(depth, breadth, nodes), Sampling())
    tree, chosen = pool.tree(nodes)
    assert len(tree) == min(nodes, len(pool.tokens))
    assert max(tree.depths) <= depth
    worst = min(pool.scores[index] for index in chosen)
    assert all(pool.scores[index] <= worst + 1e-9 for index in range(len(pool.tokens)) if index not in chosen)
    for node, index in enumerate(chosen):
        assert math.exp(pool.scores[index]) == pytest.approx(survival(drafter, tree, node), abs=1e-5)
    siblings = [(parent, token) for parent, token in zip(tree.parents, tree.tokens, strict=True)]
    assert len(set(siblings)) == len(siblings)


@given(st.integers(0, 50), st.floats(0.1, 2.0))
def test_a_sampled_trees_best_path_is_the_sampled_chain(seed: int, temperature: float) -> None:
    """Siblings share their position's noise, so the chain that the drafter would draw is in the tree."""
    sampling = Sampling(temperature, seed=seed, repeat_penalty=1.5, presence_penalty=0.5)
    chain = draft_chain(ToyDrafter(seed), 3, sampling)
    tree = draft_tree(ToyDrafter(seed), TreeShape(3, VOCAB, 500), sampling)
    node: int | None = ROOT
    for token in chain.tokens:
        assert node is not None
        node = tree.child_with(node, token)
    assert node is not None


def test_a_reduced_vocabulary_gives_the_targets_ids() -> None:
    ids = np.array([10, 20, 30, 40, 50, 60, 70])
    full, reduced = ToyDrafter(3), ToyDrafter(3)
    reduced.text, reduced.token_ids = [10], ids  # type: ignore[assignment]
    reduced.logits = lambda text: full.logits([token // 10 - 1 for token in text])  # type: ignore[method-assign]
    assert [int(ids[token]) for token in draft_chain(full, 4, Sampling()).tokens] == list(
        draft_chain(reduced, 4, Sampling()).tokens
    )


def test_equal_scores_keep_parents_before_children() -> None:
    # The authors' bf16 scores tie, and a child is then chosen without its parent.
    pool = Candidates([1, 2, 3, 4], [ROOT, ROOT, 1, 0], [-1.0] * 4)
    for nodes in range(1, 5):
        tree, chosen = pool.tree(nodes)
        assert (len(tree), chosen) == (nodes, sorted(chosen))


def test_what_would_close_a_run_is_barred() -> None:
    assert barred_after([1, 2, 3, 4, 1, 2, 3], run=4) == {4}
    assert barred_after([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], run=4) == {4, 5}
    assert (barred_after([1, 2, 3, 4, 2, 2, 3], run=4), barred_after([], run=4)) == (frozenset(), frozenset())


LEVELS, VOCAB_BLOCKS = 5, 12
GREEDY = Sampling()
TREE = GrowthShape(breadth=3, nodes=40, survival=0.01)


class BlockDrafter(RecordingDrafter):
    """Logits of each level, whatever stands in the levels before; counts its blocks."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.tokens = [1]
        self.blocks = 0
        self._generator = np.random.default_rng(seed)
        self._depths: list[int] = []
        self.levels = np.empty((0, VOCAB_BLOCKS), np.float32)

    @property
    def most_depth(self) -> int:
        return LEVELS

    def begin(self) -> Rows:
        self.blocks += 1
        self._depths = []
        self.levels = 3 * self._generator.standard_normal((LEVELS, VOCAB_BLOCKS), np.float32)
        return self.levels[:1]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        beyond = [depth for depth in self._depths[-len(tokens) :] if depth % LEVELS == 0]
        self.blocks += len(beyond)
        return self.levels[[depth % LEVELS for depth in self._depths[-len(tokens) :]]]


def grown(growing: GrowingDraft, draft: DraftTree) -> DraftTree:
    growth = growing.grow_on(draft, GREEDY)
    return DraftTree(draft.tokens + growth.tokens, draft.parents + growth.parents)


def test_a_chain_has_the_whole_block_after_one_step_and_ends_there() -> None:
    drafter = BlockDrafter()
    growing = GrowingDraft(drafter, CHAIN)
    draft = grown(growing, DraftTree((), ()))
    assert list(draft.tokens) == drafter.levels.argmax(axis=-1).tolist()
    assert (draft, growing.grow_on(draft, GREEDY)) == (draft_chain(BlockDrafter(), 99, GREEDY), Growth())
    assert drafter.blocks == 1


@given(st.integers(0, 99))
def test_a_tree_is_of_the_candidates_of_one_block(seed: int) -> None:
    drafter = BlockDrafter(seed)
    growing = GrowingDraft(drafter, TREE)
    draft = grown(growing, DraftTree((), ()))
    assert (growing.grow_on(draft, GREEDY), drafter.blocks) == (Growth(), 1)
    assert 1 <= max(draft.depths) <= LEVELS
    pool = find_candidates(BlockDrafter(seed), TreeShape(9, 3, 200), GREEDY)
    assert max(pool.tree(200)[0].depths) == LEVELS
    likely = sum(score >= np.log(TREE.survival) for score in pool.scores)
    assert len(draft) >= min(likely, TREE.nodes)
    chances = growing.chances(draft, GREEDY)
    assert min(chances) >= TREE.survival - 1e-6


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_a_new_block_continues_what_a_verdict_leaves_of_a_draft(shape: GrowthShape) -> None:
    drafter = BlockDrafter(3)
    growing = GrowingDraft(drafter, shape)
    grown(growing, DraftTree((), ()))
    chain = draft_chain(BlockDrafter(3), LEVELS, GREEDY).tokens
    growing.commit(chain[:2])
    left = DraftTree.chain(chain[2:])
    assert not growing.offer(left, GREEDY).tokens  # nothing is known without a step
    again = grown(growing, left)
    assert (drafter.blocks, again.tokens[:3]) == (2, chain[2:])
    if shape is CHAIN:
        assert list(again.tokens[3:]) == drafter.levels[3:].argmax(axis=-1).tolist()
    assert max(again.depths) <= LEVELS


def test_a_step_on_the_server_is_a_block() -> None:
    """As `SessionDrafter` takes steps: after the first one there is nothing left to look at."""
    drafter = BlockDrafter()
    growing = GrowingDraft(drafter, TREE, TextGuesser())
    arrived = DraftTree.chain([7])  # of the device, which the drafter did not propose
    assert growing.reach(arrived, GREEDY) == 1.0
    growing.expand(arrived, GREEDY)
    offered = growing.offer(arrived, GREEDY, 0.02)
    assert 0 in offered.parents  # below the device's node too
    pool = DraftTree(arrived.tokens + offered.tokens, arrived.parents + offered.parents)
    assert (growing.reach(pool, GREEDY), drafter.blocks) == (0.0, 1)


def test_text_that_is_written_alone_goes_on_with_another_block() -> None:
    drafter = BlockDrafter()
    growing = GrowingDraft(drafter, CHAIN)
    written: list[int] = []
    for _ in range(2 * LEVELS):
        written.append(growing.next_token(DraftTree.chain(written), GREEDY).token)
    assert (drafter.blocks, written) == (2, 2 * drafter.levels.argmax(axis=-1).tolist())
    assert len(growing.tree._ranked) <= LEVELS  # rows of a large vocabulary, of which a long text would fill the memory

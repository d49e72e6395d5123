"""Drafts of a drafter that guesses a whole block in one step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting import (
    CHAIN,
    GrowingDraft,
    Growth,
    GrowthShape,
    TextGuesser,
    TreeShape,
    draft_chain,
    draft_tree,
)
from moa_shared.drafting.base import Rows
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from tests.support.recording_drafter import RecordingDrafter

LEVELS, VOCAB = 5, 12
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
        self.levels = np.empty((0, VOCAB), np.float32)

    @property
    def most_depth(self) -> int:
        return LEVELS

    def begin(self) -> Rows:
        self.blocks += 1
        self._depths = []
        self.levels = 3 * self._generator.standard_normal((LEVELS, VOCAB), np.float32)
        return self.levels[:1]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        for parent in parents:
            self._depths.append(1 if parent < 0 else self._depths[parent] + 1)
        beyond = [depth for depth in self._depths[-len(tokens) :] if depth % LEVELS == 0]
        self.blocks += len(beyond)
        return self.levels[[depth % LEVELS for depth in self._depths[-len(tokens) :]]]


def grown(growing: GrowingDraft, draft: DraftTree) -> DraftTree:
    growth = growing.grow(draft, GREEDY)
    return DraftTree(draft.tokens + growth.tokens, draft.parents + growth.parents)


def test_a_chain_has_the_whole_block_after_one_step_and_ends_there() -> None:
    drafter = BlockDrafter()
    growing = GrowingDraft(drafter, CHAIN)
    draft = grown(growing, DraftTree((), ()))
    assert list(draft.tokens) == drafter.levels.argmax(axis=-1).tolist()
    assert draft == draft_chain(BlockDrafter(), 99, GREEDY)
    assert growing.grow(draft, GREEDY) == Growth()
    assert drafter.blocks == 1


@given(st.integers(0, 99))
def test_a_tree_is_of_the_candidates_of_one_block(seed: int) -> None:
    drafter = BlockDrafter(seed)
    growing = GrowingDraft(drafter, TREE)
    draft = grown(growing, DraftTree((), ()))
    assert growing.grow(draft, GREEDY) == Growth()
    assert drafter.blocks == 1
    assert 1 <= max(draft.depths) <= LEVELS
    wide, pool, _ = draft_tree(BlockDrafter(seed), TreeShape(9, 3, 200), GREEDY)
    assert max(wide.depths) == LEVELS
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
    assert drafter.blocks == 2
    assert again.tokens[:3] == chain[2:]
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
    assert growing.reach(pool, GREEDY) == 0.0
    assert drafter.blocks == 1


def test_text_that_is_written_alone_goes_on_with_another_block() -> None:
    drafter = BlockDrafter()
    growing = GrowingDraft(drafter, CHAIN)
    written: list[int] = []
    for _ in range(2 * LEVELS):
        written.append(growing.next_token(DraftTree.chain(written), GREEDY).token)
    assert drafter.blocks == 2
    assert written == 2 * drafter.levels.argmax(axis=-1).tolist()
    assert (
        len(growing._ranking._ranked) <= LEVELS
    )  # rows of a large vocabulary, of which a long text would fill the memory

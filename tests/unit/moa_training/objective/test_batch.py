from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_training.data.packing import PackedBatch, pack
from moa_training.data.shards import TokenRow
from moa_training.objective.batch import ObjectiveBatch, draw_objective
from moa_training.settings import BlockSettings


def batch() -> PackedBatch:
    rows = [[TokenRow(list(range(1, 20)), [(6, 19)]), TokenRow(list(range(1, 10)), [(3, 9)])] for _ in range(6)]
    return pack(rows, 32)


def draw(seed: int, probability: float = 0.5, **settings: object) -> ObjectiveBatch:
    chosen = BlockSettings(shortest=3, longest=7).model_copy(update=settings)
    return draw_objective(batch(), chosen, probability, torch.Generator().manual_seed(seed))


@given(st.integers(0, 500))
def test_no_block_reaches_into_another_conversation(seed: int) -> None:
    packed, drawn = batch(), draw(seed)
    start = drawn.blocks.start
    assert (packed.segment.gather(1, start) == packed.segment).all()
    for visible in (drawn.blocks.self_visible, drawn.blocks.memory_visible):
        assert not (visible & ~packed.same_segment).any()
        assert visible.diagonal(dim1=1, dim2=2)[drawn.blocks.is_start].all()
        assert visible.any(-1).all()


@given(st.integers(0, 500))
def test_weights_lie_on_positions_beyond_the_memory_alone(seed: int) -> None:
    packed, drawn = batch(), draw(seed, memory_dropout=0.0)
    behind = torch.arange(32)[None] - drawn.blocks.start
    assert (drawn.weight[behind == 0] == 0).all()
    counted = (behind > 0) & (packed.segment >= 0)
    assert torch.allclose(drawn.weight[counted], (0.9 ** (behind[counted] - 1).float()))
    assert int(behind.max()) < 7


def test_memory_dropout_leaves_the_start_of_the_conversation_alone() -> None:
    drawn = draw(1, memory_dropout=1.0)
    assert drawn.blocks.start[0, :28].tolist() == [0] * 19 + [19] * 9
    answers_only = draw(1, memory_dropout=1.0, prompts=False)
    assert answers_only.blocks.start[0, :19].tolist() == [0, 1, 2, 3, 4, 5] + [5] * 13
    assert (answers_only.weight[:, :6] == 0).all()


def test_staircase_rows_see_their_own_block_alone() -> None:
    stair, plain = draw(2, 1.0), draw(2, 0.0)
    assert stair.blocks.self_visible.sum() < plain.blocks.self_visible.sum()
    row = stair.blocks.self_visible[0, 10]
    start = int(stair.blocks.start[0, 10])
    assert row.nonzero()[:, 0].tolist() == list(range(min(start + 1, 10), 11))
    assert draw(2, 1.0, staircase=False).blocks.self_visible.equal(plain.blocks.self_visible)


def test_without_the_bound_an_answer_is_one_block() -> None:
    drawn = draw(3, bounded=False, prompts=False)
    assert drawn.blocks.start[0, :19].tolist() == [0, 1, 2, 3, 4, 5] + [5] * 13

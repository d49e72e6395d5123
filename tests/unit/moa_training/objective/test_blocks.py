"""Block starts and masks, against what their definition says position by position, and what is drawn of them."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_training.data.batches import PackedBatch, pack
from moa_training.data.shards import TokenRow
from moa_training.objective.blocks import Blocks, draw_blocks, own_share, with_own_choices
from moa_training.settings import BlockSettings

from tests.support.torch_models import build_blocks


def batch() -> PackedBatch:
    rows = [[TokenRow(list(range(1, 20)), [(6, 19)]), TokenRow(list(range(1, 10)), [(3, 9)])] for _ in range(6)]
    return pack(rows, 32)


def draw(seed: int, spent: float = 0.25, **settings: object) -> tuple[Blocks, torch.Tensor]:
    chosen: dict[str, Any] = {"shortest": 3, "longest": 7, **settings}
    return draw_blocks(batch(), BlockSettings(**chosen), spent, torch.Generator().manual_seed(seed))


@given(st.integers(0, 500))
def test_no_block_reaches_into_another_conversation(seed: int) -> None:
    packed, (blocks, _) = batch(), draw(seed)
    assert (packed.segment.gather(1, blocks.start) == packed.segment).all()
    for visible in (blocks.self_visible, blocks.memory_visible):
        assert not (visible & ~packed.same_segment).any()
        assert visible.diagonal(dim1=1, dim2=2)[blocks.is_start].all()
        assert visible.any(-1).all()


@given(st.integers(0, 500))
def test_weights_lie_on_positions_beyond_the_memory_alone(seed: int) -> None:
    packed, (blocks, weight) = batch(), draw(seed, memory_dropout=0.0)
    behind = torch.arange(32)[None] - blocks.start
    assert (weight[behind == 0] == 0).all()
    counted = (behind > 0) & (packed.segment >= 0)
    assert torch.allclose(weight[counted], (0.9 ** (behind[counted] - 1).float()))
    assert int(behind.max()) < 7
    inner = blocks.is_start & (packed.segment >= 0) & (packed.positions > 0)
    assert not (inner[:, 1:] & inner[:, :-1]).any()  # a block is no single token


def test_memory_dropout_leaves_the_start_of_the_conversation_alone() -> None:
    assert draw(1, memory_dropout=1.0)[0].start[0, :28].tolist() == [0] * 19 + [19] * 9
    answers_only, weight = draw(1, memory_dropout=1.0, prompts=False)
    assert answers_only.start[0, :19].tolist() == [0, 1, 2, 3, 4, 5] + [5] * 13
    assert (weight[:, :6] == 0).all()
    assert draw(3, bounded=False, prompts=False)[0].start[0, :19].tolist() == [0, 1, 2, 3, 4, 5] + [5] * 13


def test_staircase_rows_see_their_own_block_alone_until_half_time() -> None:
    (stair, _), (plain, _) = draw(2, 0.0), draw(2, 0.5)
    assert stair.self_visible.sum() < plain.self_visible.sum()
    row, start = stair.self_visible[0, 10], int(stair.start[0, 10])
    assert row.nonzero()[:, 0].tolist() == list(range(min(start + 1, 10), 11))
    assert draw(2, 0.0, staircase=False)[0].self_visible.equal(plain.self_visible)


def test_the_drafters_own_choices_replace_half_of_what_it_must_guess() -> None:
    length, every = 4000, 8
    ids, choices = torch.zeros(1, length, dtype=torch.long), torch.arange(1, length + 1)[None]
    inside = (torch.arange(length) >= 100)[None]
    blocks = build_blocks(inside, torch.tensor([every]), torch.tensor([False]))
    own = with_own_choices(ids, choices, blocks, torch.Generator().manual_seed(3))[0]
    replaced = own > 0
    places = torch.arange(length)
    assert own[replaced].equal(places[replaced])  # each by the choice made after the token before it
    given = (places < 100) | (places % every <= 1)  # the prompt, a block's start, and the newest known token
    assert not replaced[given].any()
    assert 0.45 < float(replaced[~given].float().mean()) < 0.55


def test_own_text_comes_gradually() -> None:
    assert [own_share(spent, 0.4) for spent in (0.0, 0.25, 0.5, 1.0)] == [0.0, 0.2, 0.4, 0.4]

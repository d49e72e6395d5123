from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_training.data.packing import PackedBatch, pack
from moa_training.data.shards import TokenRow
from moa_training.objective.blocks_at_once import draw_anchors, place_blocks
from moa_training.objective.row_share import RowShare
from moa_training.settings import BlockSettings


def batch() -> PackedBatch:
    rows = [[TokenRow(list(range(1, 20)), [(6, 19)]), TokenRow(list(range(1, 10)), [(3, 9)])] for _ in range(4)]
    return pack(rows, 32)


@given(st.integers(0, 500), st.booleans())
def test_blocks_begin_in_what_is_taught_and_see_their_own_conversation_before(seed: int, prompts: bool) -> None:
    packed = batch()
    settings = BlockSettings(prompts=prompts, anchors=12)
    anchors, counts = draw_anchors(packed, settings, torch.Generator().manual_seed(seed))
    blocks = place_blocks(packed, anchors, counts, 4, 2.0)
    for row in range(4):
        for number, anchor in enumerate(anchors[row].tolist()):
            if not counts[row, number]:
                assert not blocks.weight[row, number].any()
                continue
            begin, end = (0, 19) if anchor < 19 else (19, 28)
            first = begin + (1 if prompts else 5 if begin == 0 else 2)  # the token before the first taught one
            assert first <= anchor < end - 1
            assert blocks.visible[row, number].nonzero()[:, 0].tolist() == list(range(begin, anchor))
            guessed = [
                at
                for at, weight in zip(*(x[row, number].tolist() for x in (blocks.guessed, blocks.weight)), strict=True)
                if weight
            ]
            assert guessed == list(range(anchor, min(anchor + 3, end - 1)))
    assert torch.allclose(blocks.weight.amax((0, 1)), torch.exp(-torch.arange(3) / 2.0))


def test_all_places_are_drawn_where_there_are_fewer_than_blocks() -> None:
    anchors, counts = draw_anchors(batch(), BlockSettings(anchors=128), torch.Generator().manual_seed(1))
    assert anchors.shape == (4, 32)
    assert counts.sum(1).tolist() == [17 + 7] * 4


def test_two_processes_draw_what_one_draws() -> None:
    packed, settings = batch(), BlockSettings(anchors=5)
    whole, _ = draw_anchors(packed, settings, torch.Generator().manual_seed(7))
    halves = []
    for process in range(2):
        own = slice(2 * process, 2 * process + 2)
        half = PackedBatch(packed.ids[own], packed.positions[own], packed.segment[own], packed.answer[own])
        halves.append(draw_anchors(half, settings, torch.Generator().manual_seed(7), RowShare(process, 2))[0])
    assert torch.cat(halves).equal(whole)

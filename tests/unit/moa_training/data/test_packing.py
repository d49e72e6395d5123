from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_training.data.packing import pack, plan_rows
from moa_training.data.shards import TokenRow


@given(lengths=st.lists(st.integers(1, 90), max_size=300), seed=st.integers(0, 9))
def test_every_conversation_lies_in_one_row_that_holds_it(lengths: list[int], seed: int) -> None:
    plan = plan_rows(lengths, 64, seed)
    assert sorted(index for members in plan for index in members) == list(range(len(lengths)))
    assert all(sum(min(lengths[index], 64) for index in members) <= 64 for members in plan)
    assert plan == plan_rows(lengths, 64, seed)


def test_rows_are_well_filled() -> None:
    lengths = [20 + (7 * index) % 190 for index in range(1000)]
    plan = plan_rows(lengths, 512, 0)
    assert sum(lengths) / (512 * len(plan)) > 0.94


def test_packed_conversations_keep_their_positions_and_answers() -> None:
    first, second = TokenRow([5, 6, 7], [(1, 3)]), TokenRow([8, 9], [(1, 2)])
    batch = pack([[first, second], [TokenRow(list(range(10, 20)), [(4, 10)])]], 7)
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9, 0, 0], [10, 11, 12, 13, 14, 15, 16]]
    assert batch.positions.tolist()[0] == [0, 1, 2, 0, 1, 0, 0]
    assert batch.segment.tolist()[0] == [0, 0, 0, 1, 1, -1, -1]
    assert batch.answer.int().tolist() == [[0, 1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]]
    assert batch.tokens == 12
    same = batch.same_segment[0]
    assert same[2].tolist() == [True, True, True, False, False, False, False]
    assert same[5].tolist() == [False, False, False, False, False, True, False]

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st
from moa_training.data.batches import BatchStream, RowShare, pack, plan_rows
from moa_training.data.shards import TokenRow

ROWS = [TokenRow([index + 1] * (5 + index % 11), [(1, 4)]) for index in range(60)]


def stream(process: int = 0, processes: int = 1) -> BatchStream:
    return BatchStream(ROWS, batch_rows=2, row_tokens=32, seed=3, share=RowShare(process, processes))


def test_a_run_taken_up_again_sees_the_same_batches() -> None:
    straight = list(islice(stream().from_position(0, 0), 25))
    assert {epoch for epoch, _, _ in straight} == {0, 1, 2}
    for place in (0, 4, 9, 10, 17):
        epoch, following, _ = straight[place]
        again = list(islice(stream().from_position(epoch, following), 25 - place - 1))
        for (e, f, expected), (e2, f2, got) in zip(straight[place + 1 :], again, strict=True):
            assert (e, f) == (e2, f2)
            assert expected.ids.equal(got.ids)


def test_processes_share_out_the_batches() -> None:
    one, two = (next(stream(process, 2).from_position(0, 0))[2] for process in (0, 1))
    whole = [batch.ids for _, _, batch in islice(stream().from_position(0, 0), 2)]
    assert one.ids.equal(whole[0])
    assert two.ids.equal(whole[1])


@given(lengths=st.lists(st.integers(1, 90), max_size=300), seed=st.integers(0, 9))
def test_every_conversation_lies_in_one_row_that_holds_it(lengths: list[int], seed: int) -> None:
    plan = plan_rows(lengths, 64, seed)
    assert sorted(index for members in plan for index in members) == list(range(len(lengths)))
    assert all(sum(min(lengths[index], 64) for index in members) <= 64 for members in plan)
    assert plan == plan_rows(lengths, 64, seed)


def test_packed_conversations_keep_their_positions_and_answers() -> None:
    first, second = TokenRow([5, 6, 7], [(1, 3)]), TokenRow([8, 9], [(1, 2)])
    batch = pack([[first, second], [TokenRow(list(range(10, 20)), [(4, 10)])]], 7)
    assert batch.ids.tolist() == [[5, 6, 7, 8, 9, 0, 0], [10, 11, 12, 13, 14, 15, 16]]
    assert batch.positions.tolist()[0] == [0, 1, 2, 0, 1, 0, 0]
    assert batch.segment.tolist()[0] == [0, 0, 0, 1, 1, -1, -1]
    assert (batch.answer.int().tolist(), batch.tokens) == ([[0, 1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 1, 1, 1]], 12)
    same = batch.same_segment[0]
    assert same[2].tolist() == [True, True, True, False, False, False, False]
    assert same[5].tolist() == [False, False, False, False, False, True, False]

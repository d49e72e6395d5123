"""What the picture of a batch shows: who is in each forward, with which rows, and what is committed."""

from __future__ import annotations

from pathlib import Path

import pytest
from moa_bench.timeline import batch_picture
from moa_bench.timeline.batch import LONG_PROMPT, NOBODY, USERS, Batch, LaneRows, User, simulate_batch
from moa_bench.timeline.batch_picture import DEVICE, DEVICE_REFUSED, SERVER, SERVER_REFUSED, draw, node_colours
from moa_client.drafting.settings import DraftingSettings


@pytest.fixture(scope="module")
def batch() -> Batch:
    return simulate_batch()


def rows_of(batch: Batch, lane: int) -> list[LaneRows]:
    return [rows for forward in batch.forwards for rows in forward.rows if rows.lane == lane]


def test_an_answer_is_in_every_forward_from_its_arrival_to_its_end(batch: Batch) -> None:
    for lane, user in enumerate(USERS):
        present = [any(rows.lane == lane for rows in forward.rows) for forward in batch.forwards]
        first, last = present.index(True), len(present) - present[::-1].index(True)
        assert all(present[first:last])
        assert batch.forwards[first].began_ms >= user.arrives_ms
        assert last == len(present) or rows_of(batch, lane)[-1].ends


def test_each_lane_drafts_as_its_title_says(batch: Batch) -> None:
    for lane, user in enumerate(USERS):
        of_device = sum(rows.nodes - rows.own for rows in rows_of(batch, lane))
        own = sum(rows.own for rows in rows_of(batch, lane))
        assert bool(of_device) == user.drafting.device_drafts
        assert bool(own) == user.drafting.server_drafts
    assert all(forward.drafting_ms > 0 for forward in batch.forwards if any(rows.own for rows in forward.rows))


def test_a_forward_commits_what_it_accepts_and_one_token_more(batch: Batch) -> None:
    found = [rows for forward in batch.forwards for rows in forward.rows]
    assert any(rows.ends for rows in found)
    assert all(rows.taken == len(rows.accepted) + 1 for rows in found if not rows.read)
    assert sum(len(rows.accepted) for rows in found) > len(batch.forwards)


def test_a_long_prompt_is_read_beside_the_answers(batch: Batch) -> None:
    lane = next(number for number, user in enumerate(USERS) if user.prompt is LONG_PROMPT)
    slices = [rows.read for rows in rows_of(batch, lane) if rows.read]
    assert sum(slices) == len(LONG_PROMPT)
    assert len(slices) > 2
    reading = [forward for forward in batch.forwards if any(rows.read for rows in forward.rows)]
    assert all(any(rows.taken and not rows.read for rows in forward.rows) for forward in reading)


def test_drafts_shrink_as_users_come() -> None:
    drafting = User("", DraftingSettings("server"))
    alone, eight = simulate_batch((drafting,), 8), simulate_batch((drafting, *[User("", NOBODY)] * 7), 8)
    assert rows_of(eight, 0)[-1].own < rows_of(alone, 0)[-1].own


def test_nodes_are_coloured_by_who_guessed_them_and_whether_they_were_right() -> None:
    rows = LaneRows(0, fed=1, read=0, nodes=4, own=2, accepted=(1, 2), taken=3)
    assert node_colours(rows) == [DEVICE_REFUSED, DEVICE, SERVER, SERVER_REFUSED]


def test_a_row_of_every_lane_fits_its_forward(batch: Batch) -> None:
    for forward in batch.forwards:
        assert all((rows.fed + rows.nodes) * batch_picture.BOX_MS < forward.step_ms for rows in forward.rows)


def test_it_is_drawn(batch: Batch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "new" / "batch.png"
    draw(batch, [user.title for user in USERS], picture)
    assert picture.read_bytes().startswith(b"\x89PNG")

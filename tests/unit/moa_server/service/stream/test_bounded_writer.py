from __future__ import annotations

import asyncio

import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.service.stream.frame_writer import LEAST_RATE, BoundedWriter, SlowReaderLimit
from moa_shared.errors import UnavailableError

PATIENCE = 30.0


def test_one_small_frame_now_and_then_is_not_enough() -> None:
    pace = SlowReaderLimit(PATIENCE)
    pace.on_written(60, 29.0)
    assert 0.0 < pace.left_seconds < 2.0


def test_a_slow_link_is_enough() -> None:
    pace = SlowReaderLimit(PATIENCE)
    for _ in range(1000):
        pace.on_written(int(29 * LEAST_RATE) + 1, 29.0)
    assert pace.left_seconds == PATIENCE


def test_bytes_taken_in_before_excuse_no_waiting_later() -> None:
    pace = SlowReaderLimit(PATIENCE)
    pace.on_written(1 << 30, 0.0)
    pace.on_written(0, 10.0)
    assert pace.left_seconds == PATIENCE - 10.0
    pace.on_written(0, 100.0)
    assert pace.left_seconds == 0.0


async def test_a_client_that_takes_next_to_nothing_in_is_given_up() -> None:
    now = 0.0

    async def write(frame: pb.ServerFrame) -> None:
        nonlocal now
        now += 29.0
        await asyncio.sleep(0)

    writer = BoundedWriter(write, PATIENCE, lambda: now)
    beat = pb.ServerFrame(beat=pb.Beat(stamp=1))
    await writer.write(beat)
    await writer.write(beat)
    with pytest.raises(UnavailableError, match="The client has read almost nothing for"):
        await writer.write(beat)

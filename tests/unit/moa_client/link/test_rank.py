"""The order of servers, by table."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moa_client.link.server import ServerRank

NEAR = ServerRank(rtt_ms=5.0, step_ms=10.0, has_model=True)
FAR = ServerRank(rtt_ms=80.0, step_ms=10.0, has_model=True)
READS = replace(NEAR, unread_tokens=60, read_ms=0.6)
NOW = 100.0


@pytest.mark.parametrize(
    ("standings", "order"),
    [
        ([FAR, NEAR], [1, 0]),
        ([NEAR, NEAR], [0, 1]),  # the user's order decides a tie
        ([replace(NEAR, load=0.9), FAR], [1, 0]),  # a step there takes ten times as long
        ([replace(NEAR, load=1.0), FAR], [1, 0]),
        ([replace(NEAR, step_ms=200.0), FAR], [1, 0]),
        ([ServerRank(), FAR], [1, 0]),  # nothing is known about the first
        ([replace(NEAR, has_model=False), FAR], [1, 0]),
        ([replace(NEAR, has_drafter=False), FAR], [1, 0]),
        ([replace(NEAR, has_execution=False), FAR], [1, 0]),
        ([replace(NEAR, has_execution=False), replace(FAR, has_drafter=False)], [1, 0]),
        ([NEAR, replace(FAR, has_execution=False), replace(FAR, avoid_until=NOW + 1)], [0, 1, 2]),
        ([replace(NEAR, avoid_until=NOW + 1), FAR], [1, 0]),
        ([replace(NEAR, avoid_until=NOW), FAR], [0, 1]),
        # whoever holds the text is taken, until its answers are so slow that reading elsewhere is quicker
        ([READS, NEAR], [1, 0]),
        ([READS, replace(NEAR, load=0.7)], [1, 0]),
        ([READS, replace(NEAR, load=0.9)], [0, 1]),
        ([READS, FAR], [0, 1]),
        ([replace(READS, read_ms=0.0), FAR], [0, 1]),  # an older version that does not say how fast it reads
        ([replace(NEAR, avoid_until=NOW + 2), replace(FAR, avoid_until=NOW + 1)], [1, 0]),
    ],
)
def test_the_order_of_servers(standings: list[ServerRank], order: list[int]) -> None:
    assert sorted(range(len(standings)), key=lambda index: standings[index].place(NOW)) == order

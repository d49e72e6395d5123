"""The order of servers: near before far, free before busy, and no change for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.link.rank import ServerRank, is_clearly_better, rank

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
        ([replace(NEAR, has_model=False), FAR], [1]),
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
    assert rank(standings, NOW) == order


@pytest.mark.parametrize(
    ("other", "current", "is_better"),
    [
        (NEAR, FAR, True),
        (replace(NEAR, has_execution=False), FAR, False),
        (replace(NEAR, has_execution=False), replace(FAR, has_execution=False), True),
        (FAR, NEAR, False),
        (NEAR, replace(NEAR, rtt_ms=14.0), False),  # that much is jitter
        (replace(FAR, rtt_ms=60.0), FAR, False),
        (replace(NEAR, load=1.0), FAR, False),
        (replace(NEAR, avoid_until=NOW + 1), FAR, False),
        (replace(NEAR, has_model=None), FAR, False),
        (replace(NEAR, has_drafter=False), FAR, False),
        (FAR, replace(NEAR, has_drafter=False), True),
        (NEAR, replace(NEAR, load=0.9), True),
        (READS, replace(NEAR, load=0.8), False),  # the text is read again for too little
        (READS, replace(NEAR, load=0.9), True),
        (replace(READS, unread_tokens=1000), replace(NEAR, load=0.9), False),
    ],
)
def test_a_change_must_pay(other: ServerRank, current: ServerRank, is_better: bool) -> None:
    assert is_clearly_better(other, current, NOW) is is_better


STANDINGS = st.builds(
    ServerRank,
    rtt_ms=st.none() | st.floats(0.1, 1000.0),
    step_ms=st.floats(0.0, 500.0),
    load=st.floats(0.0, 1.0),
    has_model=st.sampled_from([True, False, None]),
    has_drafter=st.booleans(),
    avoid_until=st.floats(0.0, 200.0),
    unread_tokens=st.integers(0, 100_000),
    read_ms=st.floats(0.0, 10.0),
)


@given(STANDINGS, STANDINGS)
def test_two_servers_never_take_turns(one: ServerRank, other: ServerRank) -> None:
    assert not (is_clearly_better(one, other, NOW) and is_clearly_better(other, one, NOW))
    if one.has_model and is_clearly_better(other, one, NOW):
        assert rank([one, other], NOW)[0] == 1

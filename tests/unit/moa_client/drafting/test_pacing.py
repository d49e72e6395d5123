"""The draft in flight: what goes up, and what happens when the drafter has nothing more to guess."""

from __future__ import annotations

import pytest
from moa_client.drafting.pacing import CHAIN_BYTES, FRAME_BYTES, NODE_BYTES, RETRY_STEPS, DraftWindow
from moa_shared.tree import DraftTree

NO_DRAFT = DraftTree((), ())


def measured(*, rtt_ms: float, hits: int, misses: int) -> DraftWindow:
    """A window that has seen plain steps of 50 ms, draft steps of 5 ms, and so many right and wrong drafts."""
    window = DraftWindow()
    window.on_drafted(0.0, 5.0)
    window.rtt_ms.add(rtt_ms)
    for number in range(hits + misses):
        right = number * hits // (hits + misses) < (number + 1) * hits // (hits + misses)
        window.on_verdict(0.0, DraftTree.chain([1]), [1 if right else 2], step_ms=50.0, verified=0)
    return window


def levels(window: DraftWindow, now_ms: float = 0.0) -> int:
    """How many levels it would draft if time stood still."""
    draft = NO_DRAFT
    while window.may_grow(draft, now_ms):
        draft = DraftTree.chain([1] * (len(draft) + 1))
    return len(draft)


def test_a_draft_that_comes_too_late_is_not_begun() -> None:
    assert levels(measured(rtt_ms=20, hits=35, misses=65)) > 0
    assert levels(measured(rtt_ms=400, hits=35, misses=65)) == 0
    assert levels(measured(rtt_ms=20, hits=35, misses=65), now_ms=400) == 0


def test_levels_that_the_server_has_no_time_for_are_not_drafted() -> None:
    window = measured(rtt_ms=0, hits=65, misses=35)
    reach = []
    for least_chance in (0.0, 0.1, 0.4, 0.9):
        window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0, least_chance=least_chance)
        reach.append(levels(window))
    assert reach == sorted(reach, reverse=True)
    assert reach[0] > reach[1] > reach[2] > reach[3] == 0
    assert levels(window, now_ms=RETRY_STEPS * 50.0 + 1) == 0  # each verdict says whether it still has none
    assert window.is_priced_out
    window.forget_server()
    window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0)
    assert levels(window) > 0
    assert not window.is_priced_out


@pytest.mark.parametrize("nodes_a_token", [0.5, 1, 2, 4, 7])
def test_frames_keep_the_budget(nodes_a_token: float) -> None:
    window = DraftWindow()
    for _ in range(300):
        window.on_sent(int(2 * nodes_a_token))
        window.on_verdict(0.0, NO_DRAFT, [1, 2], step_ms=50.0, verified=0)
    size = window.frame_nodes(chain=True)
    assert nodes_a_token * (FRAME_BYTES / size + NODE_BYTES) <= CHAIN_BYTES
    assert size == 1 or nodes_a_token * (FRAME_BYTES / (size - 1) + NODE_BYTES) > CHAIN_BYTES


def test_the_levels_of_a_block_cost_one_step_together_and_end_with_it() -> None:
    """Steps of 100 ms are too slow for a server that takes 50, unless one of them brings 7 levels."""

    def slow(block_levels: int | None) -> DraftWindow:
        window = DraftWindow(block_levels=block_levels)
        window.rtt_ms.add(20.0)
        window.on_drafted(0.0, 100.0)
        for number in range(100):
            window.on_verdict(0.0, DraftTree.chain([1]), [1 if number % 5 else 2], step_ms=50.0, verified=0)
        return window

    assert not slow(None).may_grow(NO_DRAFT, 0.0)
    worth = [slow(7).may_grow(DraftTree.chain([1] * held), 0.0) for held in range(9)]
    assert worth == [True] * 5 + [False] * 4  # a draft of more than half a block is left to the server

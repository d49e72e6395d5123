"""How far to draft ahead, and how many nodes a frame waits for."""

from __future__ import annotations

import pytest
from moa_client.drafting.pacing import CHAIN_BYTES, FRAME_BYTES, MOST_LEVELS, NODE_BYTES, RETRY_STEPS, DraftWindow
from moa_shared.tree.draft_tree import DraftTree

NO_DRAFT = DraftTree((), ())


def measured(*, rtt_ms: float, hits: int, misses: int, run_ahead: bool = True) -> DraftWindow:
    """A window that has seen plain steps of 50 ms, draft steps of 5 ms, and so many right and wrong drafts."""
    window = DraftWindow(run_ahead=run_ahead)
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


def test_a_better_drafter_may_draft_further() -> None:
    reach = [levels(measured(rtt_ms=0, hits=hits, misses=100 - hits)) for hits in (0, 35, 65, 90, 100)]
    assert reach == sorted(reach)
    assert reach[0] <= 2 < 6 < reach[2] < reach[4] == MOST_LEVELS


def test_a_draft_that_comes_too_late_is_not_begun() -> None:
    assert levels(measured(rtt_ms=20, hits=35, misses=65)) > 0
    assert levels(measured(rtt_ms=400, hits=35, misses=65)) == 0
    assert levels(measured(rtt_ms=20, hits=35, misses=65), now_ms=400) == 0


def test_a_server_that_waits_always_gets_a_draft() -> None:
    assert levels(measured(rtt_ms=400, hits=0, misses=100, run_ahead=False)) >= 1


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


def test_a_drafter_that_failed_long_ago_is_tried_again() -> None:
    window = measured(rtt_ms=50, hits=0, misses=100)
    assert levels(window) == 0
    for _ in range(200):
        window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0)
    assert levels(window) > 0


def test_a_drafter_that_was_slow_long_ago_is_tried_again() -> None:
    window = DraftWindow()
    window.rtt_ms.add(50.0)
    window.on_drafted(0.0, 900.0)
    window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0)
    assert levels(window) == 0
    assert levels(window, now_ms=RETRY_STEPS * 50.0 + 1) == 1
    window.on_drafted(RETRY_STEPS * 50.0 + 1, None)
    assert levels(window, now_ms=RETRY_STEPS * 50.0 + 2) == 0


def test_a_blind_drafter_is_not_judged() -> None:
    window = DraftWindow()
    before = window.acceptance.level.mean
    for _ in range(20):
        window.on_verdict(0.0, DraftTree.chain([5]), [7], step_ms=50.0, verified=1, blind=True)
    assert window.acceptance.level.mean == before


@pytest.mark.parametrize("nodes_a_token", [0.5, 1, 2, 4, 7])
def test_frames_keep_the_budget(nodes_a_token: float) -> None:
    window = DraftWindow()
    for _ in range(300):
        window.on_sent(int(2 * nodes_a_token))
        window.on_verdict(0.0, NO_DRAFT, [1, 2], step_ms=50.0, verified=0)
    size = window.frame_nodes(chain=True)
    assert nodes_a_token * (FRAME_BYTES / size + NODE_BYTES) <= CHAIN_BYTES
    assert size == 1 or nodes_a_token * (FRAME_BYTES / (size - 1) + NODE_BYTES) > CHAIN_BYTES


def test_frames_that_cannot_keep_the_budget_are_few() -> None:
    window = DraftWindow()
    for _ in range(300):
        window.on_sent(60)
        window.on_verdict(0.0, NO_DRAFT, [1], step_ms=50.0, verified=0)
    assert not window.may_send(DraftTree.chain([1] * 15), 15)
    assert window.may_send(DraftTree.chain([1] * 16), 16)


def fighting(busy_ms: float, *, plain_ms: float = 0.0) -> DraftWindow:
    """A window whose drafter is right 80 % of the time; plain steps take 10 ms, and `busy_ms` while it drafts."""
    window = DraftWindow(plain_ms=plain_ms)
    window.rtt_ms.add(0.5)
    for number in range(60):
        window.on_drafted(0.0, 3.0)
        token = 7 if number % 5 else 8
        window.on_verdict(0.0, DraftTree.chain([7]), [token], step_ms=busy_ms, verified=0)
        if not plain_ms:
            window.on_verdict(0.0, NO_DRAFT, [7], step_ms=10.0, verified=0)
    return window


@pytest.mark.parametrize("plain_ms", [0.0, 10.0])
def test_drafting_that_slows_the_server_down_costs_what_it_takes_from_it(plain_ms: float) -> None:
    alone, shared = fighting(10.5, plain_ms=plain_ms), fighting(20.0, plain_ms=plain_ms)
    assert alone.price == fighting(10.0, plain_ms=plain_ms).price
    assert shared.price == pytest.approx(alone.price + 0.5, abs=0.05)


def test_a_window_without_plain_steps_of_both_kinds_keeps_its_price() -> None:
    window = DraftWindow()
    before = window.price
    for _ in range(20):
        window.on_drafted(0.0, 3.0)
        window.on_verdict(0.0, NO_DRAFT, [7], step_ms=50.0, verified=0)
    assert window.price == before


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

"""The best length of synchronous rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.network.step_cost import TORCH_COST, StepCost
from moa_bench.network.ways import LONGEST_CHAIN, best_length


def test_better_drafters_and_longer_links_want_longer_chains() -> None:
    assert best_length(0.0, 50.0, 5.0, TORCH_COST) == 1
    assert best_length(1.0, 50.0, 5.0, TORCH_COST) == LONGEST_CHAIN
    by_acceptance = [best_length(acceptance, 51.5, 5.0, TORCH_COST) for acceptance in (0.35, 0.5, 0.65, 0.8, 0.9)]
    assert by_acceptance == sorted(by_acceptance)
    by_rtt = [best_length(0.8, rtt, 5.0, TORCH_COST) for rtt in (0.0, 25.8, 51.5, 150.0, 300.0)]
    assert by_rtt == sorted(by_rtt)
    assert by_rtt[-1] > by_rtt[0]


@given(st.floats(0.0, 1.0), st.floats(0.0, 1000.0), st.floats(0.0, 50.0))
def test_it_is_always_a_length(acceptance: float, rtt_ms: float, draft_ms: float) -> None:
    assert 1 <= best_length(acceptance, rtt_ms, draft_ms, TORCH_COST) <= LONGEST_CHAIN


@pytest.mark.parametrize("draft_ms", [1.0, 5.0, 20.0])
def test_dear_drafts_make_short_chains(draft_ms: float) -> None:
    assert best_length(0.8, 51.5, draft_ms, TORCH_COST) >= best_length(0.8, 51.5, 2 * draft_ms, TORCH_COST)


def test_rows_that_cost_much_make_short_chains() -> None:
    lengths = [best_length(0.8, 51.5, 5.0, StepCost(10.0, row_ms)) for row_ms in (0.2, 1.5, 10.0)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_server.memory.feed import GAIN, LOAN_STEPS, MemoryBudget
from moa_server.settings import MEMORY_SHARE

PLAIN_MS = 40.0


def test_drafts_that_are_right_pay_for_memory() -> None:
    budget = MemoryBudget()
    budget.on_step(PLAIN_MS, 1, PLAIN_MS)
    budget.on_encoded(0.16 * PLAIN_MS)
    assert not budget.allows_older
    budget.on_step(1.2 * PLAIN_MS, 4, PLAIN_MS)
    assert budget.allows_older


@given(
    st.lists(st.tuples(st.floats(30, 80), st.integers(1, 3), st.floats(0.5, 12)), min_size=1, max_size=200),
    st.sampled_from([0.0, MEMORY_SHARE, 0.5]),
)
def test_memory_never_takes_more_than_its_share_the_loan_and_a_part_of_what_was_saved(
    steps: list[tuple[float, int, float]], share: float
) -> None:
    budget = MemoryBudget(share)
    stepped = saved = spent = 0.0
    dearest = 0.0
    for step_ms, tokens, encode_ms in steps:
        budget.on_step(step_ms, tokens, PLAIN_MS)
        stepped += step_ms
        saved += max(0.0, tokens * PLAIN_MS - step_ms)
        if budget.allows_newest:
            budget.on_encoded(encode_ms)
            spent += encode_ms
            dearest = max(dearest, encode_ms)
        assert spent <= share * stepped + GAIN * saved + LOAN_STEPS * PLAIN_MS + dearest + 1e-6

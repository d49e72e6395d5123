"""When few memory rows are enough for a device."""

from __future__ import annotations

from moa_client.memory.plan import CALM_TOKENS, ThinRule
from moa_shared.protocol.messages import Plane
from moa_shared.protocol.thin_memory import THIN


def test_a_device_that_drafts_nothing_needs_few_rows_while_the_link_holds() -> None:
    rule = ThinRule()
    assert rule.allows_few(drafts=False, is_link_trusted=True)
    assert not rule.allows_few(drafts=False, is_link_trusted=False)
    assert not rule.allows_few(drafts=True, is_link_trusted=True)


def test_a_device_that_has_drafted_gives_no_rows_up_for_a_short_rest() -> None:
    rule = ThinRule()
    rule.on_verdict(2, drafts=True)
    rule.on_verdict(CALM_TOKENS - 1, drafts=False)
    assert not rule.allows_few(drafts=False, is_link_trusted=True)
    rule.on_verdict(1, drafts=False)
    assert rule.allows_few(drafts=False, is_link_trusted=True)


def test_rows_cost_at_most_forty_bytes_a_token_of_an_answer_of_200() -> None:
    """In int4, of the default model: 324 bytes a state and 216 a memory row. Verdicts take 20 more."""
    sent = {THIN.owed(Plane.MEMORY, length) for length in range(50, 250)}
    states = THIN.owed(Plane.REUSED_STATE, 250)
    rows = sum(stop - start for start, stop in sent)
    assert 324 * (states[1] - states[0]) + 216 * rows <= 40 * 200

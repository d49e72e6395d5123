"""What a companion's drafts bring, by how often its choice was the target's."""

from __future__ import annotations

import pytest
from moa_client.device.drafter_catalog import UNKNOWN_ACCEPTANCE
from moa_shared.drafting.agreement import MOST_TOKENS, Agreement


def test_what_was_never_counted_is_as_good_as_an_unknown_drafter() -> None:
    assert Agreement().tokens_a_forward == pytest.approx(UNKNOWN_ACCEPTANCE, abs=0.05)


@pytest.mark.parametrize(("share", "measured"), [(0.90, 4.59), (0.98, 5.59)])
def test_it_foretells_what_chains_of_five_have_brought(share: float, measured: float) -> None:
    assert Agreement(1000, int(1000 * share)).tokens_a_forward == pytest.approx(measured, abs=0.2)


def test_what_is_long_past_counts_for_less() -> None:
    agreement = Agreement()
    for _ in range(10 * MOST_TOKENS):
        agreement.add(right=True)
    for _ in range(MOST_TOKENS):
        agreement.add(right=False)
    assert agreement.tokens < MOST_TOKENS
    assert agreement.right < agreement.tokens / 2

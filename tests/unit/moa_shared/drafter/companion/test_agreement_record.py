"""How often a companion was right, kept for the next start."""

from __future__ import annotations

from pathlib import Path

import pytest
from moa_shared.drafter.companion.agreement_record import recall_agreement, remember_agreement
from moa_shared.drafting.agreement import Agreement

PAIR = "c" * 64, "t" * 64


def test_it_is_kept_for_both_models(tmp_path: Path) -> None:
    remember_agreement(tmp_path, *PAIR, Agreement(50, 40))
    assert recall_agreement(tmp_path, *PAIR) == Agreement(50, 40)
    assert recall_agreement(tmp_path, *reversed(PAIR)) == Agreement()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"tokens": 5, "right": 6}', '{"tokens": 1e9, "right": 6}', '{"tokens": 9999, "right": 6}']
)
def test_a_damaged_record_counts_as_none(tmp_path: Path, content: str) -> None:
    remember_agreement(tmp_path, *PAIR, Agreement(50, 40))
    [record] = (tmp_path / "hashes").iterdir()
    record.write_text(content)
    assert recall_agreement(tmp_path, *PAIR) == Agreement()

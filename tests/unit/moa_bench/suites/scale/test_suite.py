"""The suite: what is said beforehand, and tables that hold all."""

from __future__ import annotations

import json

import pytest
from moa_bench.suite import SuiteRun
from moa_bench.suites.scale import SUITE, estimate_s
from moa_bench.suites.scale.measure import measure
from moa_bench.suites.scale.tables import reached_at, render


def test_a_quick_run_has_all_tables_and_asks_the_journal_for_each_part() -> None:
    asked: list[str] = []

    def keep(key, simulate):  # type: ignore[no-untyped-def]
        asked.append(key)
        return json.loads(json.dumps(simulate()))

    quick = SUITE.effort(quick=True)
    text = render(measure(quick, SuiteRun(keep=keep)))
    assert asked == ["scale Llama-3-8B, A100 80 GB, phone"]
    for part in ("plain serving", "co-located drafting", "ours (auto)", "NVIDIA A100 80GB SXM data sheet"):
        assert part in text
    assert estimate_s(quick) < 20 < estimate_s(SUITE.full)


def test_the_aim_is_reached_between_two_acceptances() -> None:
    assert reached_at([(0.5, 1.2), (0.7, 3.2)]) == pytest.approx(0.6)
    assert reached_at([(0.5, 1.2)]) is None

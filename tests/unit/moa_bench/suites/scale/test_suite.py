"""The suite: what is said beforehand, tables that hold all, and the check against measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from moa_bench.simulation.server import Costs
from moa_bench.suite import Run
from moa_bench.suites.scale.askers import ask_for
from moa_bench.suites.scale.measure import measure
from moa_bench.suites.scale.suite import SUITE, estimate_s
from moa_bench.suites.scale.tables import reached_at, render
from moa_bench.suites.scale.validation import validate
from moa_shared.errors import DataError

CELL = {"link": "RTT 0", "way": "rounds", "acceptance": 0.8, "ratio": {"median": 1.5}, "predicted": {"median": 1.2}}


def test_a_quick_run_has_all_tables_and_asks_the_journal_for_each_part(tmp_path: Path) -> None:
    (tmp_path / "network.json").write_text(json.dumps({"cells": [CELL]}), "utf-8")
    asked: list[str] = []

    def keep(key, simulate):  # type: ignore[no-untyped-def]
        asked.append(key)
        return json.loads(json.dumps(simulate()))

    quick = SUITE.effort(quick=True)
    text = render(measure(quick, Run(keep=keep), tmp_path))
    assert asked == ["scale Llama-3-8B, A100 80 GB, phone", "scale validation"]
    assert "| network: RTT 0, rounds, acceptance 0.8, over plain | 1.5 | 1.2 | +25% | **no** |" in text
    for part in ("plain serving", "co-located drafting", "ours (auto)", "NVIDIA A100 80GB SXM data sheet"):
        assert part in text
    assert estimate_s(quick) < 20 < estimate_s(SUITE.full)


def test_nothing_to_check_against_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no measured cells"):
        validate(tmp_path)


def test_a_lone_asker_reads_its_prompt_and_then_gets_a_token_a_forward() -> None:
    met = ask_for(10.0, [[50]], Costs(plain_ms=100.0, verify_ms=100.0, node_ms=1.0), tokens=16)
    assert met.first_p50_ms == pytest.approx(149.0)
    assert met.median_tokens_per_s == pytest.approx(10.0)


def test_the_aim_is_reached_between_two_acceptances() -> None:
    assert reached_at([(0.5, 1.2, 1.0), (0.7, 3.2, 1.0)]) == pytest.approx(0.6)
    assert reached_at([(0.5, 1.2, 1.0)]) is None

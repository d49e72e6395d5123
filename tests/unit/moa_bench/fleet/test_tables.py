"""The tables and the picture of a fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from moa_bench.fleet import tables
from moa_bench.fleet.asked import Asked, Opening
from moa_bench.fleet.outcome import Incident, Outcome
from moa_bench.fleet.picture import draw, smoothed
from moa_bench.fleet.scenarios import FleetEffort
from moa_bench.fleet.throughput import Throughput
from moa_bench.harness.padding import Padding
from moa_bench.report.spread import Spread

A, B = "127.0.0.1:1", "127.0.0.1:2"


def _outcome() -> Outcome:
    asked = Asked(0, 0, 10.0, 12.0, [10.5, 12.0], (1, 2), counts=[1, 1])
    asked.openings += [Opening(10.25, 0.25, A, 5, 0), Opening(11.5, 0.25, B, 6, 0)]
    return Outcome.of([asked], [(1, 2)], [Incident("drain", 10.5, 12.0, A)], [A, B])


def test_a_scenario_says_what_was_done_what_clients_met_and_who_served_them(facts: dict[str, Any]) -> None:
    played = {
        "title": "rolling updates", "done": 1, "is_complete": False, "facts": {"joined": 2.0}, "alone_first_s": 0.125,
        "outcome": _outcome(),
    }  # fmt: skip
    effort = FleetEffort(padding=Padding(100.0, 2.0))
    result = facts | {"effort": effort, "level": "int8", "drafter": "none", "scenarios": {"update": played}}
    text = tables.render(result, "update")
    assert "1 rolling updates (interrupted) under 16 clients" in text
    assert "each forward takes 100 ms" in text
    assert "| 1 | 1 | 0 | 0 | 1.50 | 1.50 | 1.0 |" in text
    assert "| with its KV | 0 |  |  |  |  |" in text
    assert "| without | 1 | 6 | 0.25 | 0.75 | 0.75 |" in text
    assert "| 2 | 1 | 1 | 50% |" in text
    assert text.endswith("| joined |\n| --- |\n| 2 |\n")


def test_throughput_is_compared_for_equal_users_a_replica_and_in_all(facts: dict[str, Any]) -> None:
    spread = Spread(10.0, 9.0, 11.0, 7)
    met = Throughput(8, spread, Spread(19.0, 18.0, 20.0, 7), Spread(1.9, 1.8, 2.0, 7), spread, spread)
    text = tables.render_throughput(facts | {"throughput": met})
    assert "each replica pinned to a core, 7 interleaved rounds" in text
    assert "| 8 on each replica | 10.0 (9.0 to 11.0) | 19.0 (18.0 to 20.0) | 1.90 (1.80 to 2.00) |" in text
    assert "| 16 in all |" in text


def test_rates_are_smoothed_over_what_came_before() -> None:
    assert smoothed([4.0, 0.0, 2.0, 2.0], 2) == [4.0, 2.0, 1.0, 2.0]


def test_a_timeline_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = draw(_outcome().timeline, "One update", tmp_path / "fleet.png")
    assert picture.read_bytes().startswith(b"\x89PNG")

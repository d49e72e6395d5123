from __future__ import annotations

from typing import Any

from moa_bench.micro.loop_end import netsim_late
from moa_bench.micro.loops import LoopEffort, render


def stream(round_trips_s: float) -> dict[str, Any]:
    return {"frame_bytes": 100, "in_flight": 1, "round_trips_s": round_trips_s, "client_us": 7.0, "server_us": 9.0}


def test_loops_are_compared_pair_by_pair(facts: dict[str, Any]) -> None:
    late = {"least_ms": -1.0, "median_ms": 0.25, "p99_ms": 3.0}
    text = render(
        facts
        | {
            "effort": LoopEffort(2),
            "streams": {"asyncio": [[stream(100.0)], [stream(200.0)]], "uvloop": [[stream(110.0)], [stream(260.0)]]},
            "timers": {"netsim": [late]},
        }
    )
    assert "of 2 runs of each loop" in text
    assert "| uvloop | 100 | 1 | 185 (148 to 222) | 1.20 (1.15 to 1.25) | 7 (7 to 7) | 9 (9 to 9) |" in text
    assert "| netsim | -1.00 (-1.00 to -1.00) | 0.25 (0.25 to 0.25) | 3.00 (3.00 to 3.00) |" in text


def test_netsims_timers_are_never_early() -> None:
    assert netsim_late(20).least_ms >= 0

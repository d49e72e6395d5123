"""`moa-bench loop`: what an event loop costs, asyncio's own against uvloop, and how punctual their timers are."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.child import child_environment, running
from moa_bench.harness.cores import on_cores
from moa_bench.micro.loop_end import ASYNCIO, NETSIM, UVLOOP, loop_factory
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread, paired_ratio

END = "moa_bench.micro.loop_end"
LOOPS = (ASYNCIO, UVLOOP)


@dataclass(frozen=True, slots=True)
class LoopEffort:
    """How much to measure.

    Args:
        pairs: of runs, one of each loop, in turn.
        seconds: of each stream of frames.
        timers: of each run.
    """

    pairs: int = 7
    seconds: float = 1.0
    timers: int = 1000


QUICK = LoopEffort(1, 0.05, 20)


def run_loops(*, quick: bool, json_file: Path | None, pin: bool) -> None:
    """Measure and report.

    Raises:
        MoaError: uvloop is missing, or an end fails.
    """
    loop_factory(UVLOOP)
    effort = QUICK if quick else LoopEffort()
    experiment = Experiment("loop", quick=quick, json_file=json_file, pin=pin, effort=effort, target="no model")
    server_cores, own_cores = experiment.server_cores, experiment.own_cores
    streams: dict[str, list[list[dict[str, Any]]]] = {loop: [] for loop in LOOPS}
    timers: dict[str, list[dict[str, Any]]] = {loop: [] for loop in (*LOOPS, NETSIM)}
    with on_cores(own_cores), make_progress().task("Loops", effort.pairs) as task:
        for _ in range(effort.pairs):
            for loop in LOOPS:
                with running(END, ["server", loop], cores=server_cores) as server:
                    streams[loop].append(_end("client", loop, server.address, "--seconds", str(effort.seconds)))
            for loop, found in timers.items():
                found.append(_end("timers", loop, "--count", str(effort.timers)))
            task.advance(1)
    experiment.result |= {"streams": streams, "timers": timers}
    experiment.publish(render(experiment.result))


def _end(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-m", END, *arguments], capture_output=True, text=True, env=child_environment()
    )
    if done.returncode:
        said = done.stderr.strip()[-2000:]
        raise UnavailableError(
            f"{END} ended with status {done.returncode}: {said}", hint="Start it by hand to see why."
        )
    return json.loads(done.stdout)


def render(result: Mapping[str, Any]) -> str:
    """Two tables: frames and timers."""
    streams, timers = result["streams"], result["timers"]
    plain = streams[ASYNCIO]
    rows = [
        _stream_row(loop, [run[place] for run in runs], [run[place] for run in plain])
        for place in range(len(plain[0]))
        for loop, runs in streams.items()
    ]
    late = [
        [loop, *(Spread.of([run[name] for run in runs]).text(2) for name in ("least_ms", "median_ms", "p99_ms"))]
        for loop, runs in timers.items()
    ]
    head = ["loop", "bytes", "in flight", "frames there and back a second", "ratio", "client, us of CPU", "server, us"]
    return "\n".join(
        [
            facts_line(result),
            f"Medians and quartiles of {result['effort'].pairs} runs of each loop, in turn; ratios are of pairs.\n",
            table(head, rows),
            table(["loop", "a timer is late, ms: at least", "median", "99th percentile"], late),
        ]
    )


def _stream_row(loop: str, runs: Sequence[Mapping[str, Any]], plain: Sequence[Mapping[str, Any]]) -> list[object]:
    rates = [run["round_trips_s"] for run in runs]
    return [
        loop,
        runs[0]["frame_bytes"],
        runs[0]["in_flight"],
        Spread.of(rates).text(0),
        paired_ratio(rates, [run["round_trips_s"] for run in plain]).text(2),
        Spread.of([run["client_us"] for run in runs]).text(0),
        Spread.of([run["server_us"] for run in runs]).text(0),
    ]

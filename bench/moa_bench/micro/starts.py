"""`moa-bench start`: how long each command line takes to say what it can do, next to an empty Python program."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores
from moa_bench.report.experiment import Experiment
from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread

EMPTY = "an empty Python program"
CLICK = "one that imports click"
ARGUMENTS = (
    ("moa-client", "--version"),
    ("moa-client", "--help"),
    ("moa-client", "chat", "--help"),
    ("moa-client", "daemon", "--help"),
    ("moa-client", "servers", "--help"),
    ("moa-client", "doctor", "--help"),
    ("moa-client", "history", "--help"),
    ("moa-client", "config", "--help"),
    ("moa-server", "--help"),
    ("moa-server", "serve", "--help"),
    ("moa-train", "--help"),
    ("moa-bench", "--help"),
    ("netsim", "--help"),
)
RUNS, QUICK_RUNS = 21, 1


def run_starts(*, quick: bool, json_file: Path | None, pin: bool) -> None:
    """Measure and report; the programs take turns.

    Raises:
        MoaError: a program is not installed, or fails.
    """
    runs = QUICK_RUNS if quick else RUNS
    experiment = Experiment("start", quick=quick, json_file=json_file, pin=pin, runs=runs, target="no model")
    commands: dict[str, Sequence[str]] = {
        EMPTY: (sys.executable, "-c", "pass"),
        CLICK: (sys.executable, "-c", "import click"),
    }
    commands |= {" ".join(arguments): (_installed(arguments[0]), *arguments[1:]) for arguments in ARGUMENTS}
    taken_ms: dict[str, list[float]] = {name: [] for name in commands}
    with on_cores(experiment.own_cores), make_progress().task("Starts", runs) as task:
        for _ in range(runs):
            for name, command in commands.items():
                taken_ms[name].append(_time_ms(command))
            task.advance(1)
    experiment.result["taken_ms"] = taken_ms
    experiment.publish(render(experiment.result))


def render(result: Mapping[str, Any]) -> str:
    """One table: the time from the shell to the end of each command."""
    taken_ms = result["taken_ms"]
    rows = [
        [name if name in (EMPTY, CLICK) else f"`{name}`", Spread.of(values).text(0)]
        for name, values in taken_ms.items()
    ]
    return "\n".join(
        [
            facts_line(result),
            f"Medians and quartiles of {result['runs']} runs, in turn.\n",
            table(["command", "ms"], rows),
        ]
    )


def _installed(program: str) -> str:
    beside = Path(sys.executable).parent / program
    path = str(beside) if beside.is_file() else shutil.which(program)
    if path is None:
        raise UnavailableError(f"{program} is not installed.", hint="Install it: pip install 'moa[bench]'.")
    return path


def _time_ms(command: Sequence[str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    taken_ms = (time.perf_counter() - began) * 1e3
    if done.returncode:
        raise UnavailableError(
            f"{' '.join(command)} ended with status {done.returncode}: {done.stderr.strip()[-500:]}",
            hint="Start it by hand to see why.",
        )
    return taken_ms

"""`moa-bench run` killed in the middle, and what the same command does then."""

import json
import os
import signal
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

from inline_snapshot import snapshot

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "COLUMNS": "100"}

# A suite of five cells behind the command's own code; the third waits for as long as a file says so.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which whoever runs the tests in the background ignores
from dataclasses import dataclass
from types import ModuleType
from moa_bench import registry
from moa_bench.cli import main
from moa_bench.suite import Suite

@dataclass(frozen=True)
class Effort:
    cells: int = 50

def measure(effort, run):
    def cell(number):
        print("measured", number, flush=True)
        if number == 2 and os.environ.get("STOP"):
            print("stopping", flush=True)
            sys.stdin.read()
        return {"speed": number}
    return {"target": run.model, "cells": [run.keep(f"cell {n}", lambda n=n: cell(n)) for n in range(effort.cells)]}

module = sys.modules["tiny"] = ModuleType("tiny")
module.measure, module.render = measure, lambda result: f"{len(result['cells'])} cells\\n"
suite = Suite("tiny", "", "tiny", Effort(), Effort(5), ("model",))
registry.CHAPTERS = {"tiny": (suite,)}
main()
"""


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", PROGRAM, "run", "tiny", "--quick", "--no-pin", "--out", str(out), *more]


def test_a_killed_run_continues_where_it_was(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGINT):
        killed = subprocess.Popen(
            command(tmp_path), env=ENVIRONMENT | {"STOP": "1"}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with killed:
            assert killed.stdout is not None
            seen = list(takewhile(lambda line: line != "stopping\n", killed.stdout))
            killed.send_signal(number)
            _, told = killed.communicate(timeout=30)
        if number == signal.SIGKILL:
            assert seen == ["measured 0\n", "measured 1\n", "measured 2\n"]
        else:
            assert seen == ["measured 2\n"]
            assert "Stopped. What was measured is kept: start the same command again to continue.\n" in told
    done = subprocess.run(command(tmp_path), env=ENVIRONMENT, text=True, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "measured 2\nmeasured 3\nmeasured 4\n5 cells\n\n")
    assert done.stderr == snapshot("""\
2 cells are there already.
tiny: done.
""")
    result = json.loads((tmp_path / "tiny.json").read_text())
    assert result["cells"] == [{"speed": number} for number in range(5)]
    assert list((tmp_path / ".journal").iterdir()) == []

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Runs a program's entry point, then writes what its first three descriptors are, and whether it may print to each.
CODE = """
import os, sys
from importlib import import_module
program, report = sys.argv[1:]
sys.argv = [program, "--help"]
try:
    import_module(program).main()
except SystemExit:
    pass
streams = [sys.stdin, sys.stdout, sys.stderr]
told = [f"{os.path.realpath(f'/proc/self/fd/{each}')} {streams[each].isatty()}" for each in range(3)]
with open(report, "w") as file:
    file.write("\\n".join(told))
"""
PROGRAMS = ("moa_server.cli", "moa_client.cli", "moa_training.cli", "moa_bench.cli", "netsim.cli")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_started_without_standard_streams_has_them_on_dev_null(program: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    subprocess.run([*closed, sys.executable, "-c", CODE, program, str(report)], timeout=60, check=True)
    assert report.read_text().splitlines() == ["/dev/null False"] * 3


def test_a_stream_that_is_open_is_left_alone(tmp_path: Path) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh"]
    command = [*closed, sys.executable, "-c", CODE, "moa_client.cli", str(tmp_path / "report")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("Usage:")
    stdin, stdout, _ = (tmp_path / "report").read_text().splitlines()
    assert stdin == "/dev/null False"
    assert "pipe:" in stdout

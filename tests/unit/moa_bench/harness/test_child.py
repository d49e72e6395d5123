"""Child processes: servers, their address, their failure, their end; engines that answer line by line."""

import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.child import WorkerCommand, running, running_workers
from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import Progress

from tests.support.messages import raises

PROGRAM = """
import os, signal, sys
where = sys.argv[sys.argv.index("--ready-file") + 1]
if sys.argv[1] == "fail":
    sys.exit("this cannot work")
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(where, "w").write(f"127.0.0.1:4{os.environ['OMP_NUM_THREADS']}\\n")
signal.pause()
"""
ECHO = """
import json, sys
print(json.dumps({"details": "echo"}), flush=True)
for line in sys.stdin:
    print(json.dumps({"said": json.loads(line), "resident_mb": 5.0}), flush=True)
"""


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_child_of_the_test.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(tmp_path) in sys.path


def test_a_child_that_ends_tells_why() -> None:
    with (
        raises(
            UnavailableError,
            snapshot("a_child_of_the_test ended with status 1: this cannot work. Start it by hand to see why."),
        ),
        running("a_child_of_the_test", ["fail"]),
    ):
        pass


def test_a_child_can_be_killed_and_a_stubborn_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("a_child_of_the_test", ["serve"]) as child:
        child.kill()
        assert child.process.poll() is not None
    monkeypatch.setattr("moa_bench.harness.child.STOP_TIMEOUT_S", 0.2)
    with running("a_child_of_the_test", ["stubborn"]) as child:
        pass
    assert child.process.poll() is not None


def test_an_engine_answers_line_by_line() -> None:
    subject = WorkerCommand("echo", (sys.executable, "-c", ECHO))
    with running_workers([subject], None, Progress()) as workers:
        assert (workers[0].details, workers[0].ask({"read": 7})["said"]) == ("echo", {"read": 7})
        assert workers[0].resident_mb == 5.0
        assert 0 < workers[0].load_s < 60

"""Child processes: servers, their address, their failure, their end; engines that answer line by line."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.child import WorkerCommand, running, running_workers
from moa_bench.harness.links import EmulatedLink, linked
from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import SilentProgress

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
    with running_workers([subject], None, SilentProgress()) as workers:
        assert workers[0].details == "echo"
        assert workers[0].ask({"read": 7})["said"] == {"read": 7}
        assert workers[0].resident_mb == 5.0
        assert 0 < workers[0].load_s < 60


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it gets, for any number of connections."""
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                return

    def run() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def dial(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=10)


def test_a_cut_holds_everything_up(echo: str) -> None:
    with linked(EmulatedLink("RTT 2 ms", 1.0), echo) as running, dial(running.address) as connection:
        connection.sendall(b"1")
        assert connection.recv(10) == b"1"
        running.cut(0.4)
        began = time.perf_counter()
        connection.sendall(b"2")
        assert connection.recv(10) == b"2"
        assert time.perf_counter() - began >= 0.3
        running.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(10)

"""A replica that is ended and started again at its address."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from inline_snapshot import snapshot
from moa_bench.fleet.replicas import Replica, free_addresses
from moa_bench.harness.child import Child
from moa_shared.errors import InternalError, UnavailableError

from tests.support.messages import raises

WAITS = "import sys; print(flush=True); sys.stdin.read()"
IGNORES = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
ENDS = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print(flush=True); sys.stdin.read()"


class Programs:
    """Starts a program in place of a server."""

    def __init__(self, code: str) -> None:
        self.ports: list[int] = []
        self._code = code

    @contextmanager
    def __call__(self, port: int) -> Iterator[Child]:
        self.ports.append(port)
        command = [sys.executable, "-S", "-c", self._code]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()  # it is ready
            try:
                yield Child("", 0.0, process)
            finally:
                process.kill()


def test_addresses_are_free_and_differ() -> None:
    assert len(set(free_addresses(3))) == 3


@pytest.mark.parametrize("kill", [True, False])
def test_a_replica_comes_back_at_its_address(kill: bool) -> None:
    start = Programs(ENDS)
    replica = Replica("127.0.0.1:12345", start, 10.0)
    try:
        assert not replica.is_up
        replica.start()
        done = replica.restart(kill=kill)
        assert replica.is_up
    finally:
        replica.close()
    assert start.ports == [12345, 12345]
    assert done.down_s <= done.ended_s <= done.up_s
    assert not replica.is_up


def test_one_that_does_not_end_or_ends_badly_is_reported() -> None:
    replica = Replica("127.0.0.1:12345", Programs(IGNORES), 0.2)
    replica.start()
    with raises(UnavailableError, snapshot("The server has not ended within 0.2 s. Look at its log.")):
        replica.end(kill=False)
    replica.close()
    replica = Replica("127.0.0.1:12345", Programs(WAITS), 10.0)
    replica.start()
    message = f"The server ended with status -{int(signal.SIGTERM)}. Look at its log."
    with raises(UnavailableError, message):
        replica.end(kill=False)
    with pytest.raises(InternalError):
        replica.end(kill=True)

"""A fleet of the tiny target on a Ray of this machine."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.support.programs import free_port
from tests.support.tiny_models import save_tiny_model

COMMAND_SECONDS = 300.0  # of a busy machine
STORE_BYTES = 100 * 1024 * 1024  # nothing of ours goes through Ray's object store
PORTS = ("dashboard-agent-listen", "dashboard-agent-grpc", "runtime-env-agent", "metrics-export")


@dataclass(frozen=True)
class Fleet:
    """The commands of one operator."""

    folder: Path  # of models and state
    model: Path
    port: int = 0  # of the first replica, which is followed by those of the others; 0: any
    ray: Mapping[str, str] = field(default_factory=dict)  # variables by which commands find Ray

    def command(self, *arguments: object) -> tuple[int, str, str]:
        """Runs `moa-server cluster`: exit code, standard output, standard error."""
        words = [sys.executable, "-m", "moa_server.cli", "cluster", *map(str, arguments)]
        done = subprocess.run(words, env=self.environment(), capture_output=True, text=True, timeout=COMMAND_SECONDS)
        return done.returncode, done.stdout, done.stderr

    @property
    def options(self) -> tuple[object, ...]:
        """Of two replicas."""
        return (
            "--drafter", "none", "--port", self.port, "--min-replicas", 2, "--cpus", 0.5, "--allow-ignore-end-of-text",
        )  # fmt: skip

    def up(self, *arguments: object) -> str:
        """Brings two replicas up, or as many as the arguments say; their addresses, a line each."""
        code, out, err = self.command("up", self.model, *self.options, *arguments)
        assert code == 0, err
        return out

    def status(self, name: str = "moa") -> list[dict[str, Any]]:
        """The replicas, as `moa-server cluster status --json` tells them."""
        for _ in range(2):  # it may end with a node of Ray
            code, out, err = self.command("status", "--name", name, "--json")
            if code == 0:
                break
        assert code == 0, err
        found: list[dict[str, Any]] = json.loads(out)["replicas"]
        return found

    def environment(self) -> dict[str, str]:
        """Of all programs."""
        hidden = self.folder / "hidden"  # Ray Serve imports pandas where there is one, as in no installation of ours
        hidden.mkdir(exist_ok=True)
        (hidden / "pandas.py").write_text("raise ImportError")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MOA_"))}
        ours = {"PYTHONPATH": os.pathsep.join([str(hidden), *sys.path]), "OMP_NUM_THREADS": "1"}
        return {**kept, **ours, **self.ray}


def port_of_two() -> int:
    """A port at which nothing listens now, nor at the next one."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = int(first.getsockname()[1])
            with suppress(OSError, OverflowError), socket.create_server(("127.0.0.1", port + 1)):
                return port


@contextmanager
def node(fleet: Fleet, address: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node of Ray at an address of this machine, once it has joined."""
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--node-ip-address={address}",
        f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats", "--no-monitor", "--include-log-monitor=false",
        *arguments, *(f"--{name}-port={free_port()}" for name in PORTS),
    ]  # fmt: skip
    log = fleet.folder / f"{address}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=fleet.environment(), start_new_session=True)
    try:
        while b"Ray runtime started" not in log.read_bytes():
            assert process.poll() is None, log.read_text("utf-8")
            time.sleep(0.2)
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends all of a node at once, as a loss of power does."""
    for each in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        with suppress(ProcessLookupError):
            if os.getsid(each) == process.pid:
                os.kill(each, signal.SIGKILL)
    process.wait()


@contextmanager
def with_head(folder: Path, address: str, *arguments: str, port: int = 0) -> Iterator[Fleet]:
    """The operator of a fleet on a Ray whose head has this address."""
    token = folder / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef" * 4)
    ray_port = free_port()
    ray = {
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ADDRESS": f"{address}:{ray_port}",
        "RAY_worker_niceness": "0", "RAY_health_check_period_ms": "500",  # a sixth: five without an answer, and it is lost
    }  # fmt: skip
    fleet = Fleet(folder, save_tiny_model(folder / "tiny", max_position_embeddings=1024), port, ray)
    head = ("--head", f"--port={ray_port}", "--include-dashboard=false")
    with (
        TemporaryDirectory(prefix="moa-ray-", dir="/tmp") as short,  # Ray's sockets lie below
        node(fleet, address, *head, f"--temp-dir={short}", *arguments),
    ):
        yield fleet


@pytest.fixture(scope="session")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The operator of the fleet that all tests share, on a Ray that takes half a minute to start."""
    with with_head(tmp_path_factory.mktemp("fleet"), "127.0.0.4", "--num-cpus=4", port=port_of_two()) as made:
        yield made
        made.command("down")


@pytest.fixture
def fleet(operator: Fleet) -> Fleet:
    """Two replicas that serve."""
    if operator.command("status")[0]:
        operator.up()
    return operator

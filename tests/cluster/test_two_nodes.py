"""A fleet over two nodes of a Ray cluster, here two of this machine: one is lost under clients.

It comes after the test that ends the Ray of the others, which would work all the while.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory

import pytest
from moa_server.cluster import ray_head
from moa_server.cluster.local_ray import POLL_SECONDS, PORTS, PRIORITY, STARTED, STORE_BYTES, WITHOUT, free_port
from moa_server.cluster.processes import session_processes

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet
from tests.support.tiny_models import save_tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]

IMPATIENCE = {"RAY_health_check_period_ms": "500"}  # a sixth; a node that has not answered five times is lost
NODES = "127.0.0.2", "127.0.0.3"  # for 127.0.0.1 Ray would take the machine's own address


@contextmanager
def node(fleet: Fleet, address: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A node of one core with this address, once it has joined."""
    command = [
        sys.executable, "-m", ray_head.__name__, "start", "--block", f"--node-ip-address={address}",
        "--num-cpus=1", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats", *WITHOUT, *arguments,
        *(f"--{name}-port={free_port()}" for name in PORTS),
    ]  # fmt: skip
    log = fleet.folder / f"{address}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=fleet.environment(), start_new_session=True)
    try:
        while STARTED not in log.read_bytes():
            assert process.poll() is None, log.read_text("utf-8")
            time.sleep(POLL_SECONDS)
        yield process
    finally:
        kill(process)


def kill(node: subprocess.Popen[bytes]) -> None:
    """Ends all of a node at once, as a loss of power does."""
    for process in session_processes(node.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    node.wait()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, subprocess.Popen[bytes]]]:
    """A fleet with one replica on each of two nodes, and the node that is not the head."""
    folder = tmp_path_factory.mktemp("nodes")
    token = folder / "token"
    token.touch(0o600)
    token.write_text("0123456789abcdef" * 4)
    address = f"{NODES[0]}:{free_port()}"
    access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_ADDRESS": address}
    ray = {**access, **IMPATIENCE, **PRIORITY}
    fleet = Fleet(folder, save_tiny_model(folder / "tiny", max_position_embeddings=1024), ray=ray)
    with ExitStack() as started:
        started.callback(fleet.leave)
        short = started.enter_context(TemporaryDirectory(prefix="moa-nodes-", dir="/tmp"))  # Ray's sockets lie below
        port = address.rpartition(":")[2]
        head = ("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={short}")
        started.enter_context(node(fleet, NODES[0], *head))
        other = started.enter_context(node(fleet, NODES[1], f"--address={address}"))
        code, _, err = fleet.command(*fleet.up("--cpus", 1, "--host", "0.0.0.0", "--insecure"))
        assert code == 0, err
        yield fleet, other


async def test_answers_go_on_when_a_node_is_lost(nodes: tuple[Fleet, subprocess.Popen[bytes]]) -> None:
    fleet, other = nodes
    addresses = [each["address"] for each in fleet.status()["replicas"]]
    assert [address.rpartition(":")[0] for address in addresses] == list(NODES)
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, addresses[::-1], 4, over.is_set))
    while not any(each["answering"] for each in (await asyncio.to_thread(fleet.status))["replicas"]):
        pass
    kill(other)
    left = addresses
    while left != addresses[:1]:  # none for a moment, if the actor that keeps them was there
        left = [each["address"] for each in (await asyncio.to_thread(fleet.status))["replicas"]]
    over.set()
    for answers in await asking:
        assert answers
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)

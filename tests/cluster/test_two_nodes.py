"""A fleet over two nodes of a Ray cluster, here two of this machine: one is lost under clients."""

import asyncio
import subprocess
from collections.abc import Iterator

import pytest

from tests.cluster.clients import check_whole, server_at, texts
from tests.cluster.conftest import Fleet, kill, node, with_head

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]

NODES = "127.0.0.2", "127.0.0.3"  # for 127.0.0.1 Ray would take the machine's own address


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, subprocess.Popen[bytes]]]:
    """A fleet with one replica on each of two nodes, and the node that is not the head."""
    with (
        with_head(tmp_path_factory.mktemp("nodes"), NODES[0], "--num-cpus=1") as fleet,
        node(fleet, NODES[1], f"--address={fleet.ray['RAY_ADDRESS']}", "--num-cpus=1") as other,
    ):
        fleet.up("--cpus", 1, "--host", "0.0.0.0", "--insecure")
        yield fleet, other


async def test_answers_go_on_when_a_node_is_lost(nodes: tuple[Fleet, subprocess.Popen[bytes]]) -> None:
    fleet, other = nodes
    addresses = [each["address"] for each in fleet.status()]
    assert [address.rpartition(":")[0] for address in addresses] == list(NODES)
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, [server_at(address) for address in addresses[::-1]], 4, over))
    while not any(each["answering"] for each in await asyncio.to_thread(fleet.status)):
        pass
    kill(other)
    left = addresses
    while left != addresses[:1]:  # none for a moment, if the actor that keeps them was there
        left = [each["address"] for each in await asyncio.to_thread(fleet.status)]
    over.set()
    check_whole(await asking)

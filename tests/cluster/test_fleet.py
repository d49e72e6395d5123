"""A fleet on Ray: replaced where it is killed, updated, guarded by keys and scaled by load; no answer is lost."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.link.security import Security
from moa_client.link.server import Server
from moa_server.access.keys import KeyBook, KeyEntry, changing, hash_of, new_key
from moa_shared.errors import AuthenticationError, MoaError

from tests.cluster.clients import check_whole, held_answers, server_at, texts
from tests.cluster.conftest import Fleet, kill, node, with_head
from tests.support.certificates import Authority
from tests.support.tiny_models import save_tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


async def test_a_killed_replica_is_replaced_and_its_answers_go_on_elsewhere(fleet: Fleet) -> None:
    servers = [server_at(each["address"]) for each in fleet.status()]
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, servers, 4, over))
    answering: list[int] = []
    while not answering:
        before = await asyncio.to_thread(fleet.status)
        answering = [each["process"] for each in before if each["answering"]]
    os.kill(answering[0], signal.SIGKILL)
    processes = {answering[0]}
    while len(processes) != 2 or answering[0] in processes:
        processes = {each["process"] for each in await asyncio.to_thread(fleet.status)}
    over.set()
    assert {each["process"] for each in before} - processes == {answering[0]}
    check_whole(await asking)


async def test_an_update_replaces_all_replicas_and_loses_no_answer(fleet: Fleet) -> None:
    before = fleet.status()
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, [server_at(each["address"]) for each in before], 4, over))
    out = await asyncio.to_thread(fleet.up, "--max-streams", 200)
    over.set()
    after = fleet.status()
    assert {each["process"] for each in after}.isdisjoint(each["process"] for each in before)
    assert sorted(out.split()) == [each["address"] for each in after]
    check_whole(await asking)


async def test_a_replica_of_another_model_is_refused_by_name_and_the_others_stay(fleet: Fleet) -> None:
    before = fleet.status()
    other = save_tiny_model(fleet.folder / "other", "qwen2", max_position_embeddings=1024)
    code, _, err = fleet.command("up", other, *fleet.options, "--max-streams", 200)
    assert (code, err.splitlines()[-1]) == snapshot(
        (
            69,
            "Error: The replicas do not start. This replica serves other, its fleet tiny. Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name.",
        )
    )
    assert fleet.status()[0]["process"] == before[0]["process"]


@pytest.fixture
def named(fleet: Fleet) -> Iterator[str]:
    """The name of another fleet on the Ray of all tests, which is to be brought up."""
    yield "other"
    fleet.command("down", "--name", "other")


async def test_keys_and_their_end_reach_all_replicas(fleet: Fleet, named: str, tmp_path: Path) -> None:
    authority, file = Authority(), tmp_path / "keys.toml"
    certificate, private_key = authority.issue().write(tmp_path)
    keys = {name: new_key() for name in ("laptop", "phone")}
    with changing(file) as book:
        book[0] = KeyBook.of(KeyEntry(name, hash_of(key)) for name, key in keys.items())
    options = (
        "--name", named, "--port", 0, "--cpus", 0.25,
        "--tls-cert", certificate, "--tls-key", private_key, "--keys-file", file,
    )  # fmt: skip
    fleet.up(*options)
    laptops, phones = (
        [
            server_at(each["address"], Security(tls=True, authorities=authority.write(tmp_path), key=key))
            for each in fleet.status(named)
        ]
        for key in keys.values()
    )
    over = asyncio.Event()
    over.set()
    first, second = [await texts(fleet.model, [laptop], 1, over) for laptop in laptops]
    check_whole(first)
    assert first == second
    before = fleet.status(named)
    with changing(file) as book:
        book[0] = book[0].without("phone")
    await asyncio.to_thread(fleet.up, *options)
    for phone in phones:
        with pytest.raises(AuthenticationError):
            await _describe_forever(phone)
        await phone.close()
    for laptop in laptops:
        await laptop.describe()
        await laptop.close()
    assert [each["process"] for each in fleet.status(named)] == [each["process"] for each in before]


async def _describe_forever(server: Server) -> None:
    while True:  # replicas read keys within a second
        await server.describe()


ASKING = 2  # clients, which find room whatever else is held
HELD = 6  # of a replica's eight answers: a load beyond 0.7


async def test_replicas_follow_a_load_that_rises_and_falls_and_no_answer_is_lost(fleet: Fleet, named: str) -> None:
    one = fleet.up(
        "--name", named, "--port", 0, "--min-replicas", 1, "--max-replicas", 3, "--cpus", 0.25, "--max-streams", 8,
        "--upscale-seconds", 1, "--downscale-seconds", 5, "--peer-requests-per-minute", 0,
    ).split()  # fmt: skip
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, [server_at(one[0])], ASKING, over))
    async with held_answers(one[0], HELD):
        two = await _until(one, 2)
        async with held_answers(two[1], HELD):
            three = await _until(two, 3)
    left = await _until(three, 1)
    over.set()
    assert [each["address"] for each in fleet.status(named)] == left
    check_whole(await asking)


async def _until(known: Sequence[str], replicas: int) -> list[str]:
    """Addresses of the replicas once so many answer: each names the others, as clients learn it."""
    while True:
        answering, others = [], list(known)
        for address in known:
            link = server_at(address)
            try:
                others += (await link.describe()).servers
                answering.append(address)
            except MoaError:
                continue  # it has ended
            finally:
                await link.close()
        if len(answering) == replicas:
            return answering
        known = list(dict.fromkeys(others))
        await asyncio.sleep(0.5)  # between looks


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

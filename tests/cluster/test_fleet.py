"""A fleet on Ray: a replica that is killed is replaced, an update replaces all, and no answer is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat

import grpc.aio
import pytest
from inline_snapshot import snapshot
from moa_server.cluster.processes import listening
from moa_shared.programs.addresses import host_of

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet
from tests.support.tiny_models import save_tiny_model

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


async def test_a_killed_replica_is_replaced_and_its_answers_go_on_elsewhere(fleet: Fleet) -> None:
    addresses = [each["address"] for each in fleet.status()["replicas"]]
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, addresses, 4, over.is_set))
    answering: list[int] = []
    while not answering:
        before = (await asyncio.to_thread(fleet.status))["replicas"]
        answering = [each["process"] for each in before if each["answering"]]
    os.kill(answering[0], signal.SIGKILL)
    while True:
        after = (await asyncio.to_thread(fleet.status))["replicas"]
        processes = {each["process"] for each in after}
        if len(after) == 2 and answering[0] not in processes:
            break
    over.set()
    assert {each["process"] for each in before} - processes == {answering[0]}
    for answers in await asking:
        assert answers
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)


async def test_an_update_replaces_all_replicas_and_loses_no_answer(fleet: Fleet) -> None:
    before = fleet.status()["replicas"]
    over = asyncio.Event()
    asking = asyncio.create_task(texts(fleet.model, [each["address"] for each in before], 4, over.is_set))
    code, out, err = await fleet.meanwhile(*fleet.up("--prefill-chunk", 128))
    over.set()
    assert code == 0, err
    after = fleet.status()["replicas"]
    assert {each["process"] for each in after}.isdisjoint(each["process"] for each in before)
    assert sorted(out.split()) == [each["address"] for each in after]
    for answers in await asking:
        assert answers
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)


async def test_a_replica_of_another_model_is_refused_by_name_and_the_others_stay(fleet: Fleet) -> None:
    before = fleet.status()["replicas"]
    other = save_tiny_model(fleet.folder / "other", "qwen2", max_position_embeddings=1024)
    code, _, err = await fleet.meanwhile(*fleet.up("--prefill-chunk", 128, model=other))
    assert (code, err.splitlines()[-1]) == snapshot(
        (
            69,
            "Error: The replicas do not start. This replica serves other, its fleet tiny. Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name.",
        )
    )
    assert fleet.status()["replicas"][0]["process"] == before[0]["process"]


async def test_a_replica_of_another_level_is_refused_by_name_and_the_others_stay(fleet: Fleet) -> None:
    before = fleet.status()["replicas"]
    level = before[0]["execution"]
    other = "float32" if level != "float32" else "int8"
    code, _, err = await fleet.meanwhile(*fleet.up("--prefill-chunk", 128, "--execution", other))
    assert code == 69
    assert err.splitlines()[-1].startswith(
        f"Error: The replicas do not start. This replica computes in {other}, its fleet in {level}."
    )
    assert before[0]["process"] in {each["process"] for each in fleet.status()["replicas"]}


def test_people_do_not_wait_for_a_replica_as_for_batch_work(fleet: Fleet) -> None:
    processes = [each["process"] for each in fleet.status()["replicas"]]
    assert [os.getpriority(os.PRIO_PROCESS, each) for each in processes] == [os.getpriority(os.PRIO_PROCESS, 0)] * 2


async def test_only_this_machine_and_user_reach_ray(fleet: Fleet) -> None:
    head = fleet.head
    code, out, err = fleet.command("status", "--json")
    assert code == 0, err
    replicas = {each["process"] for each in json.loads(out)["replicas"]}
    others = set(head.processes()) - replicas
    assert {host_of(address) for address in listening(others)} == {"127.0.0.1"}
    assert stat.S_IMODE(os.stat(head.folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(head.token).st_mode) == 0o600
    # Serve has each replica listen everywhere for calls that it unpickles; they need the token
    everywhere = [each for each in listening(replicas) if host_of(each) == "::"]
    assert len(everywhere) == len(replicas)
    for address in everywhere:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{address.rpartition(':')[2]}") as channel:
            call = channel.unary_unary("/ray.serve.ASGIService/HandleRequest", bytes, bytes)
            assert await call(b"", timeout=60).code() is grpc.StatusCode.UNAUTHENTICATED

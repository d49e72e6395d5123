"""A fleet on Ray: a replica that is killed is replaced, an update replaces all, and no answer is lost."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from inline_snapshot import snapshot

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
    code, out, err = await fleet.meanwhile(*fleet.up("--max-streams", 200))
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
    code, _, err = await fleet.meanwhile(*fleet.up("--max-streams", 200, model=other))
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
    code, _, err = await fleet.meanwhile(*fleet.up("--max-streams", 200, "--execution", other))
    assert code == 69
    assert err.splitlines()[-1].startswith(
        f"Error: The replicas do not start. This replica computes in {other}, its fleet in {level}."
    )
    assert before[0]["process"] in {each["process"] for each in fleet.status()["replicas"]}

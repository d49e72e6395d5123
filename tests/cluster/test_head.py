"""Ray's head ends under a fleet: its replicas end too, and clients go on once the operator has brought it up again."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from inline_snapshot import snapshot
from moa_server.cluster.processes import name_of

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet, unnumbered

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


async def test_clients_go_on_once_a_fleet_without_a_head_is_up_again(fleet: Fleet) -> None:
    addresses = [each["address"] for each in fleet.status()["replicas"]]
    over, broken = asyncio.Event(), dict[int, list[list[int]]]()
    asking = asyncio.create_task(texts(fleet.model, addresses, 4, over.is_set, broken))
    while not any(each["answering"] for each in (await asyncio.to_thread(fleet.status))["replicas"]):
        pass
    lost = fleet.head
    os.kill(next(each for each in lost.processes() if name_of(each) == "gcs_server"), signal.SIGKILL)
    while (answer := await fleet.meanwhile("status"))[0] == 0:
        pass
    assert (answer[0], unnumbered(answer[2])) == snapshot(
        (
            66,
            "Error: Ray, which ran here in process N, has ended without a command. Bring the fleet up again: moa-server cluster up, with its options.\n",
        )
    )
    code, out, err = await fleet.meanwhile(*fleet.up())
    assert code == 0, err
    assert unnumbered(err) == snapshot("""\
Ray, which ran here in process N, had ended without a command.
The fleet moa is up; Ray runs in process N, until moa-server cluster down.
""")
    assert out.split() == [f"127.0.0.1:{fleet.port + number}" for number in range(2)]
    assert not lost.processes()
    over.set()
    for seed, answers in enumerate(await asking):
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)
        assert all(part == answers[0][: len(part)] for part in broken.get(seed, []))

"""Ray's head ends under a fleet: its replicas end too, and clients go on once the operator has brought it up again."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.cluster.local_ray import LocalRay

from tests.cluster.asking import texts
from tests.cluster.conftest import Fleet, serving

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def options() -> tuple[object, ...]:
    """Ports that a fleet has again after it was away."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first:
            port = first.getsockname()[1]
            try:
                socket.create_server(("127.0.0.1", port + 1)).close()
            except OSError:
                continue
            return "--port", port


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory, options: tuple[object, ...]) -> Iterator[Fleet]:
    with serving(tmp_path_factory.mktemp("head"), *options) as fleet:
        yield fleet


async def test_clients_go_on_once_a_fleet_without_a_head_is_up_again(
    placed: Fleet, options: tuple[object, ...]
) -> None:
    addresses = [each["address"] for each in placed.status()["replicas"]]
    over, broken = asyncio.Event(), dict[int, list[list[int]]]()
    asking = asyncio.create_task(texts(placed.model, addresses, 4, over.is_set, broken))
    while not any(each["answering"] for each in (await asyncio.to_thread(placed.status))["replicas"]):
        pass
    lost = placed.head
    os.kill(next(each for each in lost.processes() if _name(each) == "gcs_server"), signal.SIGKILL)
    while (answer := await placed.meanwhile("status"))[0] == 0:
        pass
    assert (answer[0], _unnumbered(answer[2])) == snapshot(
        (
            66,
            "Error: Ray, which ran here in process N, has ended without a command. Bring the fleet up again: moa-server cluster up, with its options.\n",
        )
    )
    code, out, err = await placed.meanwhile(*placed.up(*options))
    assert code == 0, err
    assert _unnumbered(err) == snapshot("""\
Ray, which ran here in process N, had ended without a command.
The fleet moa is up; Ray runs in process N, until moa-server cluster down.
""")
    assert sorted(out.split()) == addresses
    assert not lost.processes()
    over.set()
    for seed, answers in enumerate(await asking):
        assert all(answer == answers[0] and len(answer) == 400 for answer in answers)
        assert all(part == answers[0][: len(part)] for part in broken.get(seed, []))


async def test_a_fleet_whose_head_was_killed_can_be_taken_down(placed: Fleet) -> None:
    head = placed.head
    (store,) = (each for each in head.processes() if _name(each) == "gcs_server")
    os.kill(store, signal.SIGSTOP)
    waiting = asyncio.create_task(placed.meanwhile("status"))
    await asyncio.to_thread(_await_a_question, head)
    for process in (head.process, store):
        os.kill(process, signal.SIGKILL)
    code, _, err = await waiting
    assert (code, _unnumbered(err)) == snapshot(
        (
            66,
            "Error: Ray, which ran here in process N, has ended without a command. Bring the fleet up again: moa-server cluster up, with its options.\n",
        )
    )
    code, _, err = await placed.meanwhile("down")
    assert (code, _unnumbered(err)) == snapshot(
        (0, "Ray, which ran here in process N, had ended already, and all its fleets.\n")
    )
    assert not head.processes()


def _unnumbered(text: str) -> str:
    text = re.sub(r"Ray has been starting for .*\n", "", text)  # where the machine is busy
    return re.sub(r"process \d+", "process N", text)


def _await_a_question(head: LocalRay) -> None:
    """Returns when a program that the head has not started has loaded Ray."""
    others: set[int] = set()
    while not any("_raylet" in _maps(each) for each in others):
        others = {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()} - set(head.processes())


def _maps(process: int) -> str:
    try:
        return Path(f"/proc/{process}/maps").read_text("utf-8")
    except OSError:
        return ""


def _name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text("utf-8").strip()

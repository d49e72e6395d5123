"""`cluster down`, also where Ray's head has ended; the last of these tests on one machine, as no fleet is left after it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.cluster.local_ray import LocalRay
from moa_server.cluster.processes import name_of

from tests.cluster.conftest import Fleet, bring_up, unnumbered

pytestmark = [pytest.mark.long, pytest.mark.timeout(900), pytest.mark.xdist_group("ray")]


def test_ray_ends_with_its_last_fleet_and_waits_for_nothing(fleet: Fleet) -> None:
    head = fleet.head
    with head.log.open("rb") as log:
        assert fleet.command("down") == (0, "", "The fleet moa is down.\n")
        said = log.read().decode()
    assert "did not finish draining" not in said
    assert not head.processes()


async def test_a_fleet_whose_head_was_killed_can_be_taken_down(operator: Fleet) -> None:
    bring_up(operator, "--min-replicas", 1)
    head = operator.head
    (store,) = (each for each in head.processes() if name_of(each) == "gcs_server")
    os.kill(store, signal.SIGSTOP)
    before = _loaded_ray()
    waiting = asyncio.create_task(operator.meanwhile("status"))
    await asyncio.to_thread(_await_a_question, head, before)
    for process in (store, head.process):  # the head would end it
        os.kill(process, signal.SIGKILL)
    code, _, err = await waiting
    assert (code, unnumbered(err)) == snapshot(
        (
            66,
            "Error: Ray, which ran here in process N, has ended without a command. Bring the fleet up again: moa-server cluster up, with its options.\n",
        )
    )
    code, _, err = await operator.meanwhile("down")
    assert (code, unnumbered(err)) == snapshot(
        (0, "Ray, which ran here in process N, had ended already, and all its fleets.\n")
    )
    assert not head.processes()


def _await_a_question(head: LocalRay, before: set[int]) -> None:
    """Returns when one more program that the head has not started has loaded Ray."""
    while not _loaded_ray() - before - set(head.processes()):
        pass


def _loaded_ray() -> set[int]:
    """The programs of this machine that have loaded Ray."""
    return {int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and "_raylet" in _maps(each)}


def _maps(process: Path) -> str:
    try:
        return (process / "maps").read_text("utf-8")
    except OSError:
        return ""

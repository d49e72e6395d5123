"""The roster of a fleet: who is named to whom, who is forgotten, and who is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_server.cluster.coordinator import SILENT_SECONDS, Report, Roster, Serving, State
from moa_shared.errors import MismatchError

SERVING = Serving("tiny", "ab", "int8")


def report(number: int, **changes: Any) -> Report:
    return replace(Report(f"r{number}", f"10.0.0.{number}:50051", SERVING), **changes)


def test_the_others_are_told_with_the_least_load_first() -> None:
    roster = Roster()
    for number, load in ((1, 0.2), (2, 0.9), (3, 0.1)):
        roster.take(report(number, load=load), now=0.0)
    assert roster.others("r1", 0.0) == ["10.0.0.3:50051", "10.0.0.2:50051"]


def test_who_drains_or_hangs_is_told_to_nobody() -> None:
    roster = Roster()
    roster.take(report(1), 0.0)
    roster.take(report(2, state=State.DRAINS), 0.0)
    roster.take(report(3, state=State.HANGS), 0.0)
    assert roster.others("r1", 0.0) == []
    assert len(roster.reports(0.0)) == 3


def test_who_is_silent_or_has_left_is_forgotten() -> None:
    roster = Roster()
    roster.take(report(1), 0.0)
    roster.take(report(2), SILENT_SECONDS / 2)
    roster.take(report(3), SILENT_SECONDS / 2)
    roster.leave("r3")
    assert [each.replica for each in roster.reports(SILENT_SECONDS)] == ["r2"]


def test_who_listens_where_another_did_takes_its_place() -> None:
    roster = Roster()
    roster.take(report(1), 0.0)
    roster.take(report(2, address="10.0.0.1:50051"), 1.0)
    assert [each.replica for each in roster.reports(1.0)] == ["r2"]


@pytest.mark.parametrize(
    ("serving", "message"),
    [
        (
            Serving("other", "cd", "int8"),
            snapshot(
                "This replica serves other, its fleet tiny. Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
            ),
        ),
        (
            Serving("tiny", "cd", "int8"),
            snapshot(
                "This replica serves tiny, its fleet other weights of it. Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
            ),
        ),
        (
            Serving("tiny", "ab", "bf16"),
            snapshot(
                "This replica computes in bf16, its fleet in int8. Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
            ),
        ),
    ],
)
def test_a_replica_that_serves_something_else_is_refused_by_name(serving: Serving, message: str) -> None:
    roster = Roster()
    roster.take(report(1), 0.0)
    with pytest.raises(MismatchError) as refused:
        roster.take(report(2, serving=serving), 0.0)
    assert str(refused.value) == message
    assert roster.others("r1", 0.0) == []


def test_facts_are_what_json_can_hold() -> None:
    assert report(1, load=0.5).facts() == snapshot(
        {
            "replica": "r1",
            "address": "10.0.0.1:50051",
            "state": "serves",
            "load": 0.5,
            "kv_used": 0.0,
            "queue_seconds": 0.0,
            "sessions": 0,
            "answering": 0,
            "process": 0,
            "node": "",
            "model": "tiny",
            "execution": "int8",
        }
    )

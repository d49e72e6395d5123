"""Started, ready, alive: what each follows from."""

from __future__ import annotations

from dataclasses import replace

from inline_snapshot import snapshot
from moa_server.observing.conditions import Signs, liveness, readiness, startup

WELL = Signs(started=True, draining=False, silent_seconds=0.1, stuck_seconds=0.2, hang_seconds=30.0)


def told(signs: Signs) -> list[tuple[bool, str]]:
    return [(each.holds, each.reason) for each in (startup(signs), readiness(signs), liveness(signs))]


def test_a_server_that_loads_is_alive() -> None:
    loading = replace(WELL, started=False, silent_seconds=0.0)
    assert told(loading) == snapshot(
        [(False, "the model is being loaded"), (False, "the model is being loaded"), (True, "alive")]
    )


def test_a_server_that_is_well() -> None:
    assert told(WELL) == snapshot([(True, "started"), (True, "ready"), (True, "alive")])


def test_a_draining_server_is_alive() -> None:
    assert told(replace(WELL, draining=True)) == snapshot(
        [(True, "started"), (False, "draining: running answers end, no new ones begin"), (True, "alive")]
    )


def test_what_hangs_is_named() -> None:
    assert told(replace(WELL, silent_seconds=31.0)) == snapshot(
        [
            (True, "started"),
            (False, "the event loop has not turned for 31 s"),
            (False, "the event loop has not turned for 31 s"),
        ]
    )
    assert told(replace(WELL, stuck_seconds=40.0)) == snapshot(
        [
            (True, "started"),
            (False, "a forward has been stuck for 40 s"),
            (False, "a forward has been stuck for 40 s"),
        ]
    )

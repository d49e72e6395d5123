"""How many replicas a load wants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from moa_server.cluster.scaling_rule import LOAD, QUEUE, policy, wanted_replicas


@pytest.mark.parametrize(
    ("loads", "queue_seconds", "running", "wanted"),
    [
        ([0.0], 0.0, 1, 1),
        ([0.7], 0.0, 1, 1),
        ([0.71], 0.0, 1, 2),
        ([1.0, 1.0], 0.0, 2, 3),
        ([0.1, 0.0], 0.0, 2, 1),
        ([0.3, 0.3], 0.0, 2, 2),  # one would have 0.6: under the target, but too near to it
        ([0.2], 1.5, 1, 2),  # a queue asks for one more, whatever the load
        ([0.9], 0.0, 2, 2),  # the new one has recorded nothing yet
        ([], 0.0, 3, 3),  # nobody has
    ],
)
def test_wanted(loads: list[float], queue_seconds: float, running: int, wanted: int) -> None:
    assert wanted_replicas(loads, queue_seconds, running) == wanted


def test_the_number_does_not_swing_when_a_load_stays() -> None:
    for tenths in range(100):
        total, running = tenths / 10, 1
        seen = []
        for _ in range(20):
            running = wanted_replicas([min(1.0, total / running)] * running, 0.0, running)
            seen.append(running)
        assert len(set(seen[-5:])) == 1, total


def test_serve_asks_with_what_replicas_have_recorded() -> None:
    recorded = {LOAD: {"a": 0.9, "b": 0.9}, QUEUE: {"a": 0.0, "b": 0.2}}
    assert policy(SimpleNamespace(aggregated_metrics=recorded, current_num_replicas=2)) == (3, {})
    assert policy(SimpleNamespace(aggregated_metrics=None, current_num_replicas=2)) == (2, {})

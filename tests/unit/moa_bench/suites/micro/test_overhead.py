"""What a step costs besides the models, from the times that a server noted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from inline_snapshot import snapshot
from moa_bench.suites.micro.overhead import overhead_of, steady_window
from moa_bench.suites.micro.timed_server import Planning, TimedForward, TimedTarget
from moa_bench.users.figures import UserAnswer
from moa_server.target import Request
from moa_server.target.kernel_target import KernelTarget
from moa_shared.errors import DataError

from tests.support.messages import raises


def forward(number: int, sessions: int = 2) -> TimedForward:
    """Every 10 ms; 8 ms of it in the forward, 0.5 in the encoder, 0.5 between two forwards, 0.5 for frames."""
    return TimedForward(10e-3 * number, 8e-3, 9.5e-3 * number, 0.5e-3 * number, 9e-3 * number, sessions, 3)


def test_all_but_the_models_is_overhead() -> None:
    found = overhead_of("way", 2, [[forward(number) for number in range(5)]])
    assert (found.step_ms.median, found.forward_ms.median, found.encoder_ms, found.rows) == (10.0, 8.0, 0.5, 3.0)
    assert found.share.median == pytest.approx(0.15)
    assert found.serial_share == pytest.approx(0.5 / 9, abs=1e-4)
    assert found.cpu_share == pytest.approx(1 / 9.5, abs=1e-4)


def test_only_steps_of_all_sessions_count_and_rounds_stay_apart() -> None:
    rounds = [[forward(0), forward(1, sessions=1), forward(2), forward(3)], [forward(1000), forward(1001)]]
    assert overhead_of("way", 2, rounds).step_ms.count == 2
    with raises(DataError, snapshot("No two forwards in a row were of 3 sessions. Measure longer answers.")):
        overhead_of("way", 3, rounds)


def test_answers_are_all_under_way_from_the_last_start_to_the_first_end() -> None:
    answers = [
        UserAnswer(0, 0, 0.0, [(1.0, 1), (2.0, 1), (5.0, 1)]),
        UserAnswer(1, 0, 0.0, [(3.0, 1), (4.0, 1), (6.0, 1)]),
    ]
    assert steady_window(answers) == (3.0, 5.0)


def test_a_target_notes_its_forwards(make_target: Callable[[], KernelTarget], monkeypatch: pytest.MonkeyPatch) -> None:
    from moa_server.engine.engine import Engine

    monkeypatch.setattr(Engine, "_commit", Engine._commit)  # put back afterwards
    target = TimedTarget(make_target(), Planning())
    for _ in range(2):
        target.forward_all([Request(target.new_cache(), [1, 2, 3]), Request(target.new_cache(), [4])])
    first, second = target.forwards
    assert (first.sessions, first.rows) == (2, 4)
    assert first.began_s < second.began_s
    assert 0 < first.cpu_s <= second.serial_cpu_s - first.serial_cpu_s

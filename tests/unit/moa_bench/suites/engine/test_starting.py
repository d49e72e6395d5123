"""How long a program takes and how much memory, measured on this Python."""

from __future__ import annotations

from inline_snapshot import snapshot
from moa_bench.suites.engine.starting import _run
from moa_shared.errors import UnavailableError

from tests.support.messages import raises


def test_memory_is_that_of_the_program_alone() -> None:
    ballast = bytearray(400_000_000)
    ballast[::4096] = b"x" * len(ballast[::4096])
    run = _run(["timeit", "-n", "1", "-r", "1", "pass"], None)
    assert run.ms > 0
    assert run.peak_mb is None or run.peak_mb < 200


def test_a_program_that_fails_is_named_with_what_it_said() -> None:
    with raises(
        UnavailableError,
        snapshot(
            "no_such_module ended with status 1: PYTHON: No module named no_such_module Start it by hand to see why."
        ),
    ):
        _run(["no_such_module"], None)

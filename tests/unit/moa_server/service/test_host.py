"""When a forward hangs, and when only the machine is busy."""

from collections.abc import Sequence

import pytest
from moa_server.engine.inference_thread import RunningJob
from moa_server.service.host import Lifecycle

HANG_SECONDS = 30.0


@pytest.mark.parametrize(
    ("passed", "worked", "hangs"),
    [
        ([1.0] * 32, 0.0, True),  # waits for what never comes
        ([1.0] * 32, 1.0, True),  # goes round for ever
        ([1.0] * 41, 0.2, False),  # has a fifth of a processor: other programs have the rest
        ([1.0, 41.0, 1.0], 0.0, False),  # this process was stopped, or the machine slept
        ([1.0] * 29, 0.0, False),
    ],
)
def test_a_forward_hangs_that_works_never_or_for_ever(passed: Sequence[float], worked: float, hangs: bool) -> None:
    now, spent = 100.0, 7.0
    lifecycle = Lifecycle(HANG_SECONDS, 0.0, lambda: now)
    for seconds in passed:
        now, spent = now + seconds, spent + worked
        lifecycle.watch(RunningJob(100.5, spent))
    assert lifecycle.hangs == hangs
    assert lifecycle.watch(RunningJob(now, spent)) == hangs  # the next one
    assert not lifecycle.hangs
    assert not lifecycle.watch(None)

from __future__ import annotations

import gc

import pytest
from moa_shared.programs.garbage import collector_paused


@collector_paused()
def fail() -> None:
    assert not gc.isenabled()
    raise ValueError


def test_the_collector_runs_again_after_an_error_and_after_the_outermost_pause() -> None:
    with pytest.raises(ValueError):
        fail()
    assert gc.isenabled()
    with collector_paused():
        with pytest.raises(ValueError):
            fail()
        assert not gc.isenabled()
    assert gc.isenabled()

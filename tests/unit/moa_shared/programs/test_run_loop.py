from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest
from moa_shared.programs.run_loop import loop_name, make_runner


@pytest.fixture(params=["installed", "missing"])
def uvloop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether uvloop can be imported."""
    if request.param == "missing":
        monkeypatch.setitem(sys.modules, "uvloop", None)
        return False
    pytest.importorskip("uvloop", exc_type=ImportError)
    return True


async def running_loop() -> str:
    return loop_name()


def test_uvloop_runs_where_it_is_installed(uvloop: bool) -> None:
    with make_runner() as runner:
        assert runner.run(running_loop()) == ("uvloop" if uvloop else "asyncio")


def test_an_interrupt_cancels_what_runs(uvloop: bool) -> None:
    ended = []

    async def wait() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with make_runner() as runner, pytest.raises(KeyboardInterrupt):
        runner.run(wait())
    assert ended == ["cancelled"]

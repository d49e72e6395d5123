"""Pinning."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.cores import on_cores, split_cores
from moa_shared.errors import ConfigError

from tests.support.messages import raises

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no affinities")


def test_nothing_is_pinned_unless_asked() -> None:
    assert split_cores(False) == (None, None)
    before = os.sched_getaffinity(0)
    with on_cores(None):
        assert os.sched_getaffinity(0) == before


def test_a_child_stays_on_its_core_and_we_come_back() -> None:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    with on_cores(core):
        script = "import os; print(sorted(os.sched_getaffinity(0)))"
        child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == str(sorted(core))
    assert os.sched_getaffinity(0) == before


def test_two_cores_are_needed() -> None:
    with (
        on_cores({min(os.sched_getaffinity(0))}),
        raises(
            ConfigError,
            snapshot("Pinning needs two cores, this process may use 1. Leave out --pin or allow more cores."),
        ),
    ):
        split_cores(True)


def test_server_and_client_get_different_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert split_cores(True) == ({3}, {5})

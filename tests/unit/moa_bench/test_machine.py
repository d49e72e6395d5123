"""Facts about machine and commit; pinning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench import machine
from moa_bench.machine import commit_of, memory_mb, on_cores, split_cores
from moa_server.verifier import memory_check
from moa_server.verifier.memory_check import MappedPages
from moa_shared.errors import ConfigError

from tests.support.messages import raises


def test_a_changed_checkout_is_marked(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=tmp_path, check=True)

    assert commit_of(tmp_path) is None
    assert commit_of(None) is None
    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "one")
    clean = commit_of(tmp_path)
    assert clean is not None
    assert len(clean) >= 7
    (tmp_path / "README.md").write_text("1")
    git("add", "README.md")
    git("commit", "-qm", "two")
    assert commit_of(tmp_path) == clean  # neither another suite's result nor a text changes what is measured
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == clean + "+"


def test_a_child_stays_on_its_core_and_we_come_back() -> None:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    with on_cores(core):
        script = "import os; print(sorted(os.sched_getaffinity(0)))"
        child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        with raises(
            ConfigError,
            snapshot("Pinning needs two cores, this process may use 1. Leave out --pin or allow more cores."),
        ):
            split_cores(True)
    assert child.stdout.strip() == str(sorted(core))
    assert os.sched_getaffinity(0) == before
    assert split_cores(False) == (None, None)
    assert ((memory_mb(os.getpid()) or 0.0) > 10.0, memory_mb(2**22 + 1)) == (True, None)


def test_the_share_of_large_pages_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "large_page_shares", [])
    monkeypatch.setattr(memory_check, "mapped_pages", lambda _, process: MappedPages(5, 2, 0) if process == 5 else None)
    for process in (5, 6):
        machine.note_large_pages(process)
    assert machine.large_page_shares == [0.4]

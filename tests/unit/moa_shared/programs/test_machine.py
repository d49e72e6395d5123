"""Cores, free memory, and the garbage collector."""

import gc
import os
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.programs.machine import (
    FreeMemory,
    collector_paused,
    free_memory,
    free_memory_bytes,
    parse_cores,
    pin_to_cores,
)

from tests.support.messages import raises


@pytest.mark.parametrize(
    ("text", "cores"), [("", set()), (" ", set()), ("0", {0}), ("0,2-3", {0, 2, 3}), ("1 , 1", {1}), ("4-4", {4})]
)
def test_a_list_of_cores(text: str, cores: set[int]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["x", "1-", "-1", "3-2", "0,,1", "0-99999", "1.5", "0 1"])
def test_what_is_no_list_of_cores(text: str) -> None:
    with raises(ValueError, snapshot("expected cores such as 0 or 0,2-3")):
        parse_cores(text)


def test_a_process_stays_on_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[object] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: pinned.append(cores), raising=False)
    pin_to_cores(frozenset())
    assert pinned == []
    pin_to_cores(frozenset({1, 2}))
    assert pinned == [{1, 2}]
    with pytest.raises(ConfigError, match="This process may not run on core 7"):
        pin_to_cores(frozenset({1, 7}))


def test_a_system_that_cannot_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    with raises(ConfigError, snapshot("Processes cannot be pinned to cores on this system. Leave out --cores.")):
        pin_to_cores(frozenset({0}))


NONE = Path("/nonexistent")


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text("MemTotal:       1000 kB\nMemAvailable:    600 kB\n")
    return path


def group(folder: Path, limit: str, used: int, stat: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


def test_what_the_machine_says_is_free(meminfo: Path) -> None:
    assert free_memory(meminfo, NONE, NONE) == FreeMemory(600 * 1024)
    assert free_memory_bytes() > 0


@pytest.mark.parametrize(("limit", "free"), [("max", 600 * 1024), ("5000", 2000), ("2000", 0)])
def test_a_container_s_limit_counts(meminfo: Path, tmp_path: Path, limit: str, free: int) -> None:
    group(tmp_path, limit, 3000)
    assert free_memory(meminfo, tmp_path, NONE) == FreeMemory(free, None if limit == "max" else int(limit))


def test_pages_of_files_can_be_had(meminfo: Path, tmp_path: Path) -> None:
    group(tmp_path, "5000", 4000, stat="anon 1000\ninactive_file 1000\nactive_file 500\n")
    assert free_memory(meminfo, tmp_path, NONE) == FreeMemory(2500, 5000)


def test_the_limits_of_a_service_and_of_what_it_is_in_count(meminfo: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/moa.service\n")
    group(tmp_path / "system.slice", "9000", 1000)
    group(tmp_path / "system.slice/moa.service", "max", 500)
    assert free_memory(meminfo, tmp_path, own) == FreeMemory(8000, 9000)
    group(tmp_path / "system.slice/moa.service", "3000", 500)
    assert free_memory(meminfo, tmp_path, own) == FreeMemory(2500, 3000)


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

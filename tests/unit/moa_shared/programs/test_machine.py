"""Free memory, what another process does, and the garbage collector."""

import gc
import os
import signal
import subprocess
from pathlib import Path

import pytest
from moa_shared.programs.machine import FreeMemory, collector_paused, free_memory, life_of

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
    assert free_memory().nbytes > 0


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


def test_what_a_process_does() -> None:
    mine = life_of(os.getpid())
    assert mine is not None
    assert not mine.is_idle
    assert 0 < mine.seconds <= os.times().user + os.times().system + 1
    with subprocess.Popen(["sleep", "600"]) as other:
        other.send_signal(signal.SIGSTOP)
        while (life := life_of(other.pid)) is None or not life.is_idle:
            os.sched_yield()
        other.kill()
    assert life_of(other.pid) is None


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

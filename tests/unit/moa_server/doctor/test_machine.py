"""A machine's files, as Linux writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from moa_server.doctor.machine import read_machine


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four hardware threads of two cores, in a container."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for number in range(4):
        topology = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 2},{number % 2 + 2}\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: CPU X\n\nprocessor\t: 1\n")
    return tmp_path


def test_threads_of_one_core_are_one_core(system: Path) -> None:
    machine = read_machine(system, system)
    assert (machine.cpu, machine.threads, machine.cores) == ("CPU X", 4, 2)
    (system / "devices/system/cpu/cpu3/topology/thread_siblings_list").unlink()
    assert read_machine(system, system).cores == 4  # not known: each is taken for a core


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("1 0", None), ("many", None)]
)
def test_limits_of_the_container(system: Path, text: str, quota: float | None) -> None:
    (system / "fs/cgroup/cpu.max").write_text(f"{text}\n")
    assert read_machine(system, system).quota == quota
    assert read_machine(system, system).memory_limit is None
    (system / "fs/cgroup/memory.max").write_text("1000\n")
    assert read_machine(system, system).memory_limit == 1000


def test_this_machine_says_something() -> None:
    machine = read_machine()
    assert 1 <= machine.cores <= machine.threads == len(os.sched_getaffinity(0))
    assert machine.is_root is (os.geteuid() == 0)
    assert read_machine(Path("/none"), Path("/none")).cpu == ""

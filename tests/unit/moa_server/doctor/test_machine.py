"""A machine's files, as Linux writes them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from moa_server.capacity.plan import Needed, Speed, StepEstimate
from moa_server.doctor.examination import (
    EARLIEST,
    Machine,
    judge_clock,
    judge_cpu,
    judge_disk,
    judge_estimate,
    judge_memory,
    judge_open_files,
    judge_speed,
    judge_threads,
    judge_user,
    read_machine,
)
from moa_shared.programs.machine import Check


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


NEEDED = Needed(weights=1_000_000_000, drafters=0, process=150_000_000)
MIXTURE = replace(NEEDED, idle=900_000_000, is_mapped=True)
LONGEST = 8192, 200_000_000  # tokens, and bytes
MACHINE = Machine(
    cpu="CPU X",
    threads=8,
    cores=4,
    quota=None,
    memory_limit=None,
    open_files=1024,
    is_root=False,
    now=EARLIEST,
    clock_is_set=True,
)


FREE = "1.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB"
LIMITED = replace(MACHINE, memory_limit=2 * 10**9)
OLD_COMPILER = "avxvnni (AVX-VNNI), the fastest of those compiled; amx would be faster, but was left out"


@pytest.mark.parametrize(
    ("check", "state", "message", "hint"),
    [
        (judge_memory(2 * 10**9, NEEDED, 0, MACHINE, LONGEST), "ok", FREE.replace("1.0", "2.0"), ""),
        (judge_memory(2 * 10**9, NEEDED, 10**9, LIMITED, LONGEST), "fail", "the container's limit is 2.0 GB", "Lower"),
        (judge_memory(10**9, NEEDED, 0, MACHINE, LONGEST), "fail", FREE, "Use a smaller model"),
        (judge_memory(2 * 10**9, NEEDED, 10**8, MACHINE, LONGEST), "warn", "may take 100.0 MB", "4096 at most"),
        (judge_memory(10**9, MIXTURE, 0, MACHINE, LONGEST), "warn", FREE, "250.0 MB are always needed"),
        (judge_memory(10**9, replace(MIXTURE, is_mapped=False), 0, MACHINE, LONGEST), "fail", FREE, "Use a smaller"),
        (judge_estimate("int8", StepEstimate(5 * 10**9, 13e9)), "warn", "at most about 2.6 tokens/s", "Nobody gets 5"),
        (judge_estimate("int8", StepEstimate(5 * 10**8, 13e9)), "ok", "at most about 26 tokens/s", "--measure loads"),
        (judge_estimate("bf16", None), "skip", "not estimated on the level bf16", "--measure loads"),
        (judge_disk("/cache", 5 * 10**9), "ok", "5.0 GB are free in /cache", ""),
        (judge_disk("/cache", 5 * 10**8), "warn", "500.0 MB are free in /cache", "another --cache-dir"),
        (judge_cpu("CPU X", "amx", "Kernels: amx (AMX int8), the fastest."), "ok", "CPU X: amx (AMX int8)", ""),
        (
            judge_cpu("", "avx2", "Kernels: avx2 (AVX2), the fastest."),
            "warn",
            "avx2 (AVX2), the fastest",
            "several times",
        ),
        (judge_cpu("CPU X", "avxvnni", f"Kernels: {OLD_COMPILER}."), "warn", OLD_COMPILER, "newer C compiler"),
        (judge_threads(0, replace(MACHINE, threads=4)), "ok", "4 for 4 cores", ""),
        (judge_threads(0, MACHINE), "warn", "8 for 4 cores with 8 hardware threads", "--threads 4"),
        (judge_threads(0, replace(MACHINE, threads=4, quota=1.5)), "warn", "the container may use 1.5", "--threads 1"),
        (judge_threads(1, MACHINE), "warn", "1 for 4 cores", "Cores stay idle: --threads 4"),
        (judge_threads(1, replace(MACHINE, threads=4, quota=0.5)), "ok", "the container may use 0.5", ""),
        (judge_speed("int8", Speed(100.0, 10.0, 5.0)), "ok", "(10 tokens/s for one user)", ""),
        (judge_speed("int8", Speed(100.0, 10.0, 5.0)), "ok", "about 5 users at 5 tokens/s", ""),
        (judge_speed("bf16", Speed(180.0, 10.0, 5.0)), "ok", "about 1 user at 5 tokens/s", "int8 is faster on CPUs"),
        (judge_speed("int8", Speed(300.0, 10.0, 5.0)), "warn", "a plain step takes 300.0 ms", "Nobody gets 5 tokens/s"),
        (judge_clock(MACHINE), "ok", "it is set", ""),
        (judge_clock(replace(MACHINE, clock_is_set=None)), "ok", "plausible", ""),
        (judge_clock(replace(MACHINE, clock_is_set=False)), "warn", "nothing keeps it right", "NTP"),
        (judge_clock(replace(MACHINE, now=0.0)), "fail", "it is years behind", "not yet valid"),
        (judge_open_files(MACHINE, 1000), "warn", "1024 may be open", "LimitNOFILE=1128"),
        (judge_open_files(MACHINE, 896), "ok", "the program need 1024", ""),
        (judge_open_files(replace(MACHINE, open_files=None), 1000), "ok", "no limit", ""),
        (judge_user(MACHINE), "ok", "not root", ""),
        (judge_user(replace(MACHINE, is_root=True)), "warn", "which a server does not need", "a user of its own"),
    ],
)
def test_judgements(check: Check, state: str, message: str, hint: str) -> None:
    assert check.state == state
    assert message in check.message
    assert hint in check.hint
    assert bool(check.hint) is bool(hint)
    assert check.exit_code == (state == "fail")

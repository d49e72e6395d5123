"""A machine's files, as Linux writes them, and what a server's settings mean on it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moa_server.access.keys import VARIABLE as KEYS_VARIABLE
from moa_server.capacity import Speed, StepEstimate
from moa_server.doctor import (
    Machine,
    check_keys,
    check_tls,
    judge_cpu,
    judge_disk,
    judge_estimate,
    judge_memory,
    judge_open_files,
    judge_speed,
    judge_threads,
    read_machine,
)
from moa_server.setting_up import SetupFolder, add_key, set_up
from moa_server.settings import ServerSettings
from moa_server.verifier.memory_check import Needed
from moa_shared.errors import ConfigError
from moa_shared.programs.machine import Check, FreeMemory


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000", None), ("150000 100000", 1.5), ("", None), ("1 0", None), ("many", None)]
)
def test_threads_of_one_core_are_one_core_and_a_container_has_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, quota: float | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for number in range(4):
        topology = tmp_path / f"devices/system/cpu/cpu{number}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{number % 2},{number % 2 + 2}\n")
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: CPU X\n\nprocessor\t: 1\n")
    (tmp_path / "fs/cgroup/cpu.max").write_text(f"{text}\n")
    assert read_machine(tmp_path, tmp_path) == Machine("CPU X", threads=4, cores=2, quota=quota)
    (tmp_path / "devices/system/cpu/cpu3/topology/thread_siblings_list").unlink()
    assert read_machine(tmp_path, tmp_path).cores == 4  # not known: each is taken for a core
    assert read_machine(Path("/none"), Path("/none")) == Machine("", 4, 4)


NEEDED, MIXTURE = Needed(1_000_000_000), Needed(1_000_000_000, idle=900_000_000)
LONGEST = 8192, 200_000_000  # tokens, and bytes
MACHINE, FOUR = Machine("CPU X", threads=8, cores=4), Machine("CPU X", threads=4, cores=4)
G1, G2 = FreeMemory(10**9), FreeMemory(2 * 10**9)


def expect(check: Check, state: str, message: str, hint: str = "") -> None:
    assert (check.state, bool(check.hint), check.exit_code) == (state, bool(hint), int(state == "fail"))
    assert message in check.message
    assert hint in check.hint


FREE = "1.0 GB are free; the model takes 1.1 GB, a conversation of 8192 tokens 200.0 MB"
LIMITED = FreeMemory(2 * 10**9, limit=2 * 10**9)
OLD_COMPILER = "avxvnni (AVX-VNNI), the fastest of those compiled; amx would be faster, but was left out"


@pytest.mark.parametrize(
    ("check", "state", "message", "hint"),
    [
        (judge_memory(G2, NEEDED, 0, LONGEST), "ok", FREE.replace("1.0", "2.0"), ""),
        (judge_memory(LIMITED, NEEDED, 10**9, LONGEST), "fail", "the container's limit is 2.0 GB", "Lower"),
        (judge_memory(G1, NEEDED, 0, LONGEST), "fail", FREE, "Use a smaller model"),
        (judge_memory(G2, NEEDED, 10**8, LONGEST), "warn", "may take 100.0 MB", "4096 at most"),
        (judge_memory(G1, MIXTURE, 0, LONGEST), "warn", FREE, "250.0 MB are always needed"),
        (judge_estimate("int8", StepEstimate(5 * 10**9, 13e9)), "warn", "at most about 2.6 tokens/s", "Nobody gets 5"),
        (judge_estimate("int8", StepEstimate(5 * 10**8, 13e9)), "ok", "at most about 26 tokens/s", "--measure loads"),
        (judge_estimate("bf16", None), "skip", "not estimated on the level bf16", "--measure loads"),
        (judge_disk("/cache", 5 * 10**9), "ok", "5.0 GB are free in /cache", ""),
        (judge_disk("/cache", 5 * 10**8), "warn", "500.0 MB are free in /cache", "another --cache-dir"),
        (judge_cpu("CPU X", "amx", "Kernels: amx (AMX int8), the fastest."), "ok", "CPU X: amx (AMX int8)", ""),
        (judge_cpu("", "avx2", "Kernels: avx2, the fastest."), "warn", "avx2, the fastest", "several times"),
        (judge_cpu("CPU X", "avxvnni", f"Kernels: {OLD_COMPILER}."), "warn", OLD_COMPILER, "newer C compiler"),
        (judge_threads(0, FOUR), "ok", "4 for 4 cores", ""),
        (judge_threads(0, MACHINE), "warn", "8 for 4 cores with 8 hardware threads", "--threads 4"),
        (judge_threads(0, Machine("", 4, 4, 1.5)), "warn", "the container may use 1.5", "--threads 1"),
        (judge_threads(1, MACHINE), "warn", "1 for 4 cores", "Cores stay idle: --threads 4"),
        (judge_threads(1, Machine("", 4, 4, 0.5)), "ok", "the container may use 0.5", ""),
        (judge_speed("int8", Speed(100.0, 10.0, 5.0)), "ok", "about 5 users at 5 tokens/s", ""),
        (judge_speed("bf16", Speed(180.0, 10.0, 5.0)), "ok", "about 1 user at 5 tokens/s", "int8 is faster on CPUs"),
        (judge_speed("int8", Speed(300.0, 10.0, 5.0)), "warn", "a plain step takes 300.0 ms", "Nobody gets 5 tokens/s"),
        (judge_open_files(1024, 1000), "warn", "1024 may be open", "LimitNOFILE=1128"),
        (judge_open_files(1024, 896), "ok", "the program need 1024", ""),
        (judge_open_files(None, 1000), "ok", "no limit", ""),
    ],
)
def test_judgements(check: Check, state: str, message: str, hint: str) -> None:
    expect(check, state, message, hint)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_certificate_or_the_want_of_any(tmp_path: Path) -> None:
    folder = SetupFolder(tmp_path / "server")
    set_up(folder, ["gpu.example", "192.0.2.7"], 50051, NOW)
    tls: dict[str, Any] = {"tls_cert": folder.server.certificate, "tls_key": folder.server.key}
    settings = ServerSettings(host="0.0.0.0", **tls)
    days = int(check_tls(settings, NOW).message.partition("valid for ")[2].partition(" ")[0])
    expect(check_tls(settings, NOW), "ok", "gpu.example, 192.0.2.7: valid for")
    of_clients = ServerSettings(tls_client_ca=folder.authority.certificate, **tls)
    expect(check_tls(of_clients, NOW + timedelta(days - 10)), "warn", "10 more days, its key fits; clients", "--renew")
    expect(check_tls(ServerSettings(), NOW), "ok", "not used: nothing leaves this machine")
    expect(check_tls(ServerSettings(host="0.0.0.0", insecure=True), NOW), "warn", "others on the way", "setup HOST")
    with pytest.raises(ConfigError, match="conversations would cross the network without"):
        check_tls(ServerSettings(host="0.0.0.0"), NOW)


def test_keys_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = add_key(file, "device", NOW)
    settings = ServerSettings(keys_file=file)
    expect(check_keys(ServerSettings(), {}, NOW), "ok", "not wanted: only this machine reaches the server")
    expect(check_keys(ServerSettings(host="0.0.0.0"), {}, NOW), "warn", "whoever reaches", "--keys-file FILE")
    expect(check_keys(settings, {}, NOW), "ok", "1 that can be used")
    expect(check_keys(settings, {KEYS_VARIABLE: f"other {key}"}, NOW), "ok", "2 that can be used")
    entry = file.read_text("utf-8")
    file.write_text(entry + "expires = 2025-12-31T00:00:00Z\n", "utf-8")
    expect(check_keys(settings, {}, NOW), "warn", "0 that can be used; expired: device", "Nobody gets in")

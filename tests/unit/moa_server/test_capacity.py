"""Plans against real hosts and what is refused; a machine's files, as Linux writes them, and what settings mean on it."""

import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from moa_kernels import PAGE_ROWS
from moa_server import capacity
from moa_server.access.keys import VARIABLE as KEYS_VARIABLE
from moa_server.capacity import Speed, StepEstimate, capacity_text, estimate_step, measure_speed, plan_capacity
from moa_server.doctor import (
    Machine,
    MachineExamination,
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
from moa_server.loading import ServerPlan, load_host
from moa_server.setting_up import SetupFolder, add_key, set_up
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import Execution
from moa_server.verifier.memory_check import PROCESS_BYTES, Needed
from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.network.plan import state_shapes
from moa_shared.models.storage.tensors import map_tensors
from moa_shared.programs.machine import Check, FreeMemory
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from tests.support.tiny_models import (
    HYBRID,
    SMALL,
    save_drafter,
    save_tiny_model,
    small_drafter,
    tiny_kernel_target,
    tiny_model,
)

BUDGET = 3_000_000_000


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def assert_as_a_host(settings: ServerSettings) -> None:
    """The plan says what a host with the same settings says, which has loaded the model."""
    planned = plan_capacity(settings, 0, Progress())
    host = load_host(settings, Progress())
    assert planned["level"] == host.services.served.execution.level
    assert planned["sessions"][-1]["tokens"] == host.services.served.context_tokens
    for room in planned["sessions"]:
        assert room["that_fit"] == host.services.conversations_that_fit(room["tokens"]) > 0


@pytest.mark.torch
@pytest.mark.parametrize("drafting", ["auto", "device"])
@pytest.mark.parametrize("execution", ["float32", "bf16"])
def test_a_tiny_model_in_torch(tmp_path: Path, execution: str, drafting: str) -> None:
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=2500)
    drafter = save_drafter(tmp_path / "drafter.safetensors", small_drafter(hidden_size=32, target_head_dim=8))
    more = {"execution": execution, "drafting": drafting, "drafter": str(drafter), "draft_nodes": 100}
    assert_as_a_host(ServerSettings(model=str(folder), kv_bytes=BUDGET, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("more", [{}, {"drafting": "off"}, {"drafter": "none", "context_length": 3000}, {"kv": "q8"}])
def test_the_default_model(more: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOA_CACHE_DIR")
    monkeypatch.setattr(capacity, "READ_BYTES", 1 << 24)  # of its speed nothing is asked here
    assert_as_a_host(ServerSettings(kv_bytes=BUDGET, threads=1, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("execution", ["int8", "float32"])
def test_recurrent_states_and_their_checkpoints_are_counted(tmp_path: Path, execution: Any) -> None:
    folder = save_tiny_model(tmp_path / "tiny", HYBRID, max_position_embeddings=9000)
    settings = ServerSettings(model=str(folder), kv_bytes=BUDGET, execution=execution, drafter="none", threads=1)
    assert_as_a_host(settings)
    with pytest.raises(
        ModelSourceError, match="tiny is of the family qwen3_5_text, which the torch levels do not compute"
    ):
        plan_capacity(replace(settings, execution="bf16"), 0, Progress())
    planned = plan_capacity(settings, 0, Progress())
    plan, state = ServerPlan(settings, Progress()), planned["state_bytes"]
    states = state_shapes(plan.files.config)
    assert state == sum(each.nbytes for each in states) == 2 * 4 * (4 * 32 * 32 + 3 * 256)
    text = capacity_text(planned)
    assert (
        "Each holds recurrent states of 38.9 kB, and as much again for each checkpoint of them: up to 2, and one"
        in text
    )
    [memory] = [
        check for check in MachineExamination(settings, Progress(), lambda _: None).run() if check.name == "memory"
    ]
    assert f", {decimal(7 * state)} of it for recurrent states and 6 checkpoints of them" in memory.message
    page = plan.target.new_cache().page_nbytes
    nodes = settings.draft_nodes * sum(each.draft_nbytes for each in states)
    pages = -(-(9000 + settings.draft_nodes) // PAGE_ROWS)
    assert planned["sessions"][-1]["bytes_each"] == pages * page + 7 * state + nodes


def test_weights_are_counted_as_they_are_packed(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=64)
    numbers = sum(tensor.data.nbytes for tensor in map_tensors(folder / "model.safetensors").values()) // 4
    for execution, each in (("float32", 4), ("bf16", 2)):
        settings = ServerSettings(model=str(folder), execution=execution, drafter="none")  # type: ignore[arg-type]
        assert plan_capacity(settings, BUDGET, Progress())["weights_bytes"] == each * numbers


def test_what_holds_nothing_is_refused(tmp_path: Path) -> None:
    needed = Needed(100_000_000)
    assert (needed.kv_budget(PROCESS_BYTES + 200_000_000), needed.kv_budget(PROCESS_BYTES)) == (75_000_000, 0)
    mixture = Needed(200_000_000, idle=100_000_000)
    assert mixture.kv_budget(PROCESS_BYTES + 200_000_000) == 75_000_000
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=64)
    settings = ServerSettings(model=str(folder), execution="float32", drafter="none")
    with pytest.raises(ConfigError, match="MB of memory do not hold the model: it takes"):
        plan_capacity(settings, 100_000_000, Progress())
    with pytest.raises(ConfigError, match="bytes of keys and values hold no conversation: one"):
        plan_capacity(replace(settings, kv_bytes=5), 0, Progress())


@pytest.mark.parametrize("context", [8192, PAGE_ROWS])
def test_a_step_reads_weights_and_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    monkeypatch.setattr(capacity, "memory_bytes_per_s", lambda _: 1e9)
    folder = save_tiny_model(tmp_path / "tiny", num_hidden_layers=3, max_position_embeddings=8192)
    settings = ServerSettings(model=str(folder), context_length=context, drafter="none", execution="int8")
    plan = ServerPlan(settings, Progress())
    found = estimate_step(plan)
    assert found is not None
    assert found.nbytes == plan.needed.weights + min(1024, context) // PAGE_ROWS * plan.target.new_cache().page_nbytes
    assert found.tokens_per_s == pytest.approx(1e9 / found.nbytes)
    assert estimate_step(ServerPlan(replace(settings, execution="bf16"), Progress())) is None


def test_users_share_a_forward() -> None:
    assert Speed(step_ms=50.0, row_ms=10.0, read_ms=2.5).users == 10  # 40 + 10 * (10 + 2 * 2.5) ms for a token each
    assert Speed(step_ms=200.0, row_ms=10.0, read_ms=0.0).users == 1
    assert Speed(step_ms=201.1, row_ms=1.0, read_ms=0.0).users == 0


def test_a_target_is_measured() -> None:
    speed = measure_speed(Execution("int8", tiny_kernel_target(tiny_model()), "", lambda: None))
    assert speed.step_ms > 0 <= speed.row_ms
    assert speed.read_ms > 0


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


@pytest.mark.parametrize(("check", "state", "message", "hint"), [
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
])  # fmt: skip
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

"""Plans against real hosts, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
from moa_kernels import PAGE_ROWS
from moa_server import capacity
from moa_server.capacity import Speed, estimate_step, measure_speed, plan_capacity
from moa_server.loading import ServerPlan, load_host
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import Execution
from moa_server.verifier.memory_check import PROCESS_BYTES, Needed
from moa_shared.errors import ConfigError
from moa_shared.models.storage.tensors import map_tensors
from moa_shared.programs.progress import SilentProgress

from tests.support.tiny_models import (
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
    planned = plan_capacity(settings, 0, SilentProgress())
    host = load_host(settings, SilentProgress())
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


def test_weights_are_counted_as_they_are_packed(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=64)
    numbers = sum(tensor.data.nbytes for tensor in map_tensors(folder / "model.safetensors").values()) // 4
    for execution, each in (("float32", 4), ("bf16", 2)):
        settings = ServerSettings(model=str(folder), execution=execution, drafter="none")  # type: ignore[arg-type]
        assert plan_capacity(settings, BUDGET, SilentProgress())["weights_bytes"] == each * numbers


def test_what_holds_nothing_is_refused(tmp_path: Path) -> None:
    needed = Needed(100_000_000)
    assert needed.kv_budget(PROCESS_BYTES + 200_000_000) == 75_000_000
    assert needed.kv_budget(PROCESS_BYTES) == 0
    mixture = Needed(200_000_000, idle=100_000_000)
    assert mixture.kv_budget(PROCESS_BYTES + 200_000_000) == 75_000_000
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=64)
    settings = ServerSettings(model=str(folder), execution="float32", drafter="none")
    with pytest.raises(ConfigError, match="MB of memory do not hold the model: it takes"):
        plan_capacity(settings, 100_000_000, SilentProgress())
    with pytest.raises(ConfigError, match="bytes of keys and values hold no conversation: one"):
        plan_capacity(replace(settings, kv_bytes=5), 0, SilentProgress())


@pytest.mark.parametrize("context", [8192, PAGE_ROWS])
def test_a_step_reads_weights_and_what_is_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, context: int
) -> None:
    monkeypatch.setattr(capacity, "memory_bytes_per_s", lambda _: 1e9)
    folder = save_tiny_model(tmp_path / "tiny", num_hidden_layers=3, max_position_embeddings=8192)
    settings = ServerSettings(model=str(folder), context_length=context, drafter="none", execution="int8")
    plan = ServerPlan(settings, SilentProgress())
    found = estimate_step(plan)
    assert found is not None
    assert found.nbytes == plan.needed.weights + min(1024, context) // PAGE_ROWS * plan.target.page_nbytes
    assert found.tokens_per_s == pytest.approx(1e9 / found.nbytes)
    assert estimate_step(ServerPlan(replace(settings, execution="bf16"), SilentProgress())) is None


def test_users_share_a_forward() -> None:
    assert Speed(step_ms=50.0, row_ms=10.0, read_ms=2.5).users == 10  # 40 + 10 * (10 + 2 * 2.5) ms for a token each
    assert Speed(step_ms=200.0, row_ms=10.0, read_ms=0.0).users == 1
    assert Speed(step_ms=201.1, row_ms=1.0, read_ms=0.0).users == 0


def test_a_target_is_measured() -> None:
    speed = measure_speed(Execution("int8", tiny_kernel_target(tiny_model()), "", lambda: None))
    assert speed.step_ms > 0 <= speed.row_ms
    assert speed.read_ms > 0

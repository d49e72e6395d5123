"""Plans against real hosts, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_server.capacity import speed
from moa_server.capacity.plan import Needed, kv_budget, plan_capacity, plan_rooms, session_lengths
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.errors import ConfigError
from moa_shared.models.tensors import map_tensors
from moa_shared.programs.progress import SilentProgress

from tests.support.messages import raises
from tests.support.tiny_models import SMALL, save_drafter, save_tiny_model, small_drafter

BUDGET = 3_000_000_000


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def assert_as_a_host(settings: ServerSettings) -> None:
    """The plan says what a host with the same settings says, which has loaded the model."""
    planned = plan_capacity(settings, 0, SilentProgress())
    host = load_host(settings, SilentProgress())
    assert planned.level == host.services.served.execution.level
    assert planned.rooms[-1].tokens == host.services.served.context_tokens
    for room in planned.rooms:
        assert room.sessions == host.services.conversations_that_fit(room.tokens) > 0


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
    monkeypatch.setattr(speed, "READ_BYTES", 1 << 24)  # of its speed nothing is asked here
    assert_as_a_host(ServerSettings(kv_bytes=BUDGET, threads=1, **more))  # type: ignore[arg-type]


def test_weights_are_counted_as_they_are_packed(tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "tiny", seed=1, **SMALL, num_hidden_layers=3, max_position_embeddings=64)
    numbers = sum(tensor.data.nbytes for tensor in map_tensors(folder / "model.safetensors").values()) // 4
    for execution, each in (("float32", 4), ("bf16", 2)):
        settings = ServerSettings(model=str(folder), execution=execution, drafter="none")  # type: ignore[arg-type]
        assert plan_capacity(settings, BUDGET, SilentProgress()).needed.weights == each * numbers


@given(st.integers(1, 1 << 20))
def test_lengths_rise_to_the_context(context: int) -> None:
    lengths = session_lengths(context)
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == context


def test_what_holds_nothing_is_refused() -> None:
    needed = Needed(weights=100_000_000, drafters=0, process=50_000_000)
    assert kv_budget(250_000_000, needed) == 75_000_000
    mixture = Needed(weights=200_000_000, drafters=0, process=50_000_000, idle=100_000_000, is_mapped=True)
    assert kv_budget(250_000_000, mixture) == 75_000_000
    with raises(
        ConfigError,
        snapshot(
            "100.0 MB of memory do not hold the model: it takes 150.0 MB before anybody asks. Plan with more --memory, or a smaller model."
        ),
    ):
        kv_budget(100_000_000, needed)
    with raises(
        ConfigError,
        snapshot(
            "5 bytes of keys and values hold no conversation: one of 1024 tokens takes 10.2 kB. Plan with more --kv-bytes or --memory, or a smaller model."
        ),
    ):
        plan_rooms(5, 2048, lambda tokens: 10 * tokens)

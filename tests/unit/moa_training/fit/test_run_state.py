import errno
from pathlib import Path
from typing import Any

import moa_training.fit.run_state
import pytest
import torch
from moa_shared.errors import CheckpointError, DiskFullError
from moa_training.fit.run_state import NAME, MasterWeights, Position, learning_rate, load_state, save_state
from moa_training.settings import OptimiserSettings
from torch import nn

POSITION = Position("id", 7, 1, 3, 900, 12.5)
SETTINGS = OptimiserSettings(clip=0.5)
RATES = OptimiserSettings(learning_rate=1e-3, final_learning_rate=1e-5, warmup_steps=10)


def test_what_was_saved_comes_back_unless_it_is_damaged_or_of_another_run(tmp_path: Path) -> None:
    assert load_state(tmp_path, "id") is None
    save_state(tmp_path, POSITION, {"a": torch.arange(3.0)})
    loaded = load_state(tmp_path, "id")
    assert loaded is not None
    assert (loaded[0], loaded[1]["a"].tolist()) == (POSITION, [0, 1, 2])
    with pytest.raises(CheckpointError, match="belongs to a run with other settings or data"):
        load_state(tmp_path, "else")
    path = tmp_path / NAME
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CheckpointError, match="damaged"):
        load_state(tmp_path, "id")


def test_a_kill_or_a_full_disk_leaves_the_last_whole_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(tmp_path, POSITION, {"a": torch.zeros(3)})

    def full(_: Any, path: Path, __: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(moa_training.fit.run_state, "save_file", full)
        with pytest.raises(DiskFullError, match="the last whole one is kept"):
            save_state(tmp_path, Position("id", 8), {"a": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    (tmp_path / (NAME + ".partial")).write_bytes((tmp_path / NAME).read_bytes()[:40])
    assert (kept := load_state(tmp_path, "id")) is not None
    assert kept[0].step == 7
    save_state(tmp_path, Position("id", 8), {"a": torch.ones(3)})
    assert (kept := load_state(tmp_path, "id")) is not None
    assert kept[0].step == 8


def module(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def masters(linear: nn.Module) -> MasterWeights:
    return MasterWeights(linear, SETTINGS, {name: w.detach().clone() for name, w in linear.named_parameters()})


def test_in_float32_it_is_adamw() -> None:
    ours, theirs = module(), module()
    optimiser = masters(ours)
    adam = torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(5):
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        for linear in (ours, theirs):
            linear(inputs).square().sum().backward()
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        optimiser.step(0.01)
        adam.step()
        adam.zero_grad()
    torch.testing.assert_close(ours.weight, theirs.weight)


def test_small_updates_add_up_below_the_resolution_of_bf16() -> None:
    linear = module().bfloat16()
    optimiser = MasterWeights(linear, SETTINGS, {n: torch.ones_like(w) for n, w in linear.named_parameters()})
    for _ in range(40):
        for weight in linear.parameters():
            weight.grad = torch.ones_like(weight)
        optimiser.step(1e-4)
    assert float(optimiser.masters["weight"].mean()) == pytest.approx(1 - 40e-4, abs=1e-4)
    assert float(linear.weight.detach().float().mean()) < 1


def test_a_gradient_that_overflowed_changes_nothing() -> None:
    linear = module()
    optimiser = masters(linear)
    before = linear.weight.detach().clone()
    linear.weight.grad = torch.full_like(linear.weight, float("inf"))
    linear.bias.grad = torch.zeros_like(linear.bias)
    optimiser.step(0.01)
    assert linear.weight.equal(before)
    linear(torch.ones(4, 6)).square().sum().backward()
    optimiser.step(0.01)
    assert not linear.weight.equal(before)


def test_the_rate_warms_up_linearly_and_then_falls_to_the_final_one() -> None:
    rates = [learning_rate(RATES, step, 0.0) for step in (0, 9)]
    rates += [learning_rate(RATES, 10 + step, step / 200) for step in (100, 200)]
    assert rates == pytest.approx([1e-4, 1e-3, (1e-3 + 1e-5) / 2, 1e-5])

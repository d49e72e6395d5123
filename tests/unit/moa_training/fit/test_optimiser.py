from __future__ import annotations

import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.errors import CheckpointError
from moa_training.fit.run_state import MasterWeights, learning_rate
from moa_training.settings import OptimiserSettings
from torch import nn

from tests.support.messages import raises

SETTINGS = OptimiserSettings(clip=0.5)
RATES = OptimiserSettings(learning_rate=1e-3, final_learning_rate=1e-5, warmup_steps=10)


def module(seed: int = 0) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(6, 3)


def masters(linear: nn.Module) -> MasterWeights:
    return MasterWeights(linear, SETTINGS, {name: w.detach().clone() for name, w in linear.named_parameters()})


def update(linear: nn.Module, optimiser: MasterWeights, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        dtype = next(linear.parameters()).dtype
        linear(torch.randn(4, 6, generator=generator).to(dtype)).square().sum().backward()
        optimiser.step(0.01)


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
    linear = module()
    optimiser = MasterWeights(
        linear.bfloat16(), SETTINGS, {n: torch.ones_like(w) for n, w in linear.named_parameters()}
    )
    for _ in range(40):
        for weight in linear.parameters():
            weight.grad = torch.ones_like(weight)
        optimiser.step(1e-4)
    assert float(optimiser.masters["weight"].mean()) == pytest.approx(1 - 40e-4, abs=1e-4)
    assert float(linear.weight.detach().float().mean()) < 1


def test_a_restored_optimiser_continues_as_it_would_have() -> None:
    straight, begun, resumed = module(), module(), module(9)
    optimiser = masters(straight)
    update(straight, optimiser, range(8))
    first = masters(begun)
    update(begun, first, range(4))
    second = masters(resumed)
    second.restore({name: tensor.clone() for name, tensor in first.state().items()})
    update(resumed, second, range(4, 8))
    assert resumed.weight.equal(straight.weight)


def test_a_gradient_that_overflowed_changes_nothing() -> None:
    linear = module()
    optimiser = masters(linear)
    before = linear.weight.detach().clone()
    linear.weight.grad = torch.full_like(linear.weight, float("inf"))
    linear.bias.grad = torch.zeros_like(linear.bias)
    optimiser.step(0.01)
    assert linear.weight.equal(before)
    update(linear, optimiser, range(1))
    assert not linear.weight.equal(before)


def test_the_state_of_another_drafter_is_refused() -> None:
    state = masters(nn.Linear(5, 3)).state()
    with raises(
        CheckpointError,
        snapshot(
            "The training state does not fit the drafter: weight is missing or of another shape. Give the run another output folder, or the configuration that it was begun with."
        ),
    ):
        masters(module()).restore(state)


def test_warm_up_is_linear_and_the_end_is_the_final_rate() -> None:
    assert learning_rate(RATES, 0, 0.0) == pytest.approx(1e-4)
    assert learning_rate(RATES, 9, 0.0) == pytest.approx(1e-3)
    assert learning_rate(RATES, 500, 0.5) == pytest.approx((1e-3 + 1e-5) / 2)
    assert learning_rate(RATES, 1000, 1.0) == learning_rate(RATES, 1001, 1.7) == pytest.approx(1e-5)


def test_the_rate_never_rises_after_the_warm_up() -> None:
    rates = [learning_rate(RATES, 10 + step, step / 200) for step in range(201)]
    assert rates == sorted(rates, reverse=True)


def test_the_authors_schedule_ends_after_one_of_forty_epochs() -> None:
    authors = OptimiserSettings(learning_rate=6e-4, final_learning_rate=3e-5, warmup_steps=50, schedule="authors")
    assert learning_rate(authors, 60, 0.0) == pytest.approx(6e-4)
    assert learning_rate(authors, 60, 0.0125) == pytest.approx((6e-4 + 3e-5) / 2)
    assert learning_rate(authors, 60, 0.025) == learning_rate(authors, 60, 0.9) == pytest.approx(3e-5)

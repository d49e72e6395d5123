"""The losses, against one position at a time."""

from __future__ import annotations

import pytest
import torch
from moa_training.objective.objective import (
    Prediction,
    feature_losses,
)
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

BATCH, LENGTH, HIDDEN, VOCAB = 2, 5, 6, 9


def make(*, state: bool) -> tuple[Prediction, Activations, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return 2 * torch.randn(*shape, generator=generator)

    shape = (BATCH, LENGTH, HIDDEN)
    prediction = Prediction(
        draw(*shape).requires_grad_(), draw(*shape).requires_grad_() if state else None, draw(*shape)
    )
    empty = torch.empty(0)
    target = Activations(empty, empty, draw(*shape), draw(*shape) if state else None, empty)
    return prediction, target, draw(VOCAB, HIDDEN)


WEIGHT = torch.tensor([[0.0, 1.0, 0.5, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0, 2.0]])
IS_START = torch.tensor([[True, False, True, False, False], [True, True, False, False, False]])


def smooth_l1(a: torch.Tensor, b: torch.Tensor) -> float:
    total = 0.0
    for difference in (a - b).abs().tolist():
        total += 0.5 * difference**2 if difference < 1 else difference - 0.5
    return total / len(a)


@pytest.mark.parametrize("count_starts", [False, True])
@torch.no_grad()
def test_losses_are_weighted_means_over_positions(count_starts: bool) -> None:
    prediction, target, head = make(state=True)
    assert prediction.state is not None
    assert target.state is not None
    weights = LossSettings(cross_entropy=0.3, feature=0.8, count_starts=count_starts)
    losses = feature_losses(prediction, target, head, WEIGHT, weights, IS_START)
    entropy = feature = state = agreed = 0.0
    for row in range(BATCH):
        for i in range(LENGTH):
            w = float(WEIGHT[row, i])
            teacher, drafter = head @ target.last_hidden[row, i], head @ prediction.feature[row, i]
            entropy -= w * float((teacher.softmax(-1) * drafter.log_softmax(-1)).sum())
            feature += w * smooth_l1(prediction.feature[row, i], target.last_hidden[row, i])
            agreed += w * float(teacher.argmax() == drafter.argmax())
            if not IS_START[row, i]:
                state += w * smooth_l1(prediction.state[row, i], target.state[row, i])
    total = float(WEIGHT.sum())
    counted = total if count_starts else float(WEIGHT[~IS_START].sum())
    assert (counted < total) != count_starts
    assert losses.state is not None
    assert losses.feature is not None
    assert losses.cross_entropy.item() == pytest.approx(entropy / total, rel=1e-5)
    assert losses.feature.item() == pytest.approx(feature / total, rel=1e-5)
    assert losses.state.item() == pytest.approx(state / counted, rel=1e-5)
    assert losses.agreement.item() == pytest.approx(agreed / total, rel=1e-5)
    expected = 0.3 * entropy / total + 0.8 * 0.5 * (feature / total + state / counted)
    assert losses.total.item() == pytest.approx(expected, rel=1e-5)


def test_without_reused_layers_the_feature_has_the_whole_weight() -> None:
    prediction, target, head = make(state=False)
    losses = feature_losses(prediction, target, head, WEIGHT, LossSettings(cross_entropy=0.1), IS_START)
    assert losses.state is None
    assert losses.feature is not None
    assert losses.total.item() == pytest.approx(0.1 * losses.cross_entropy.item() + losses.feature.item(), rel=1e-6)


def test_positions_without_weight_get_no_gradient() -> None:
    prediction, target, head = make(state=True)
    feature_losses(prediction, target, head, WEIGHT, LossSettings(), IS_START).total.backward()
    assert prediction.state is not None
    assert prediction.feature.grad is not None
    assert prediction.state.grad is not None
    assert torch.equal(prediction.feature.grad.abs().sum(-1) > 0, WEIGHT > 0)
    assert torch.equal(prediction.state.grad.abs().sum(-1) > 0, (WEIGHT > 0) & ~IS_START)


def test_a_batch_in_which_nothing_counts_is_no_loss() -> None:
    prediction, target, head = make(state=True)
    losses = feature_losses(prediction, target, head, torch.zeros(BATCH, LENGTH), LossSettings(), IS_START)
    losses.total.backward()
    assert losses.total.item() == 0.0
    assert prediction.feature.grad is not None
    assert not prediction.feature.grad.any()

"""The losses, against one position at a time."""

from __future__ import annotations

import pytest
import torch
from moa_training.objective.objective import Prediction, feature_losses
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

BATCH, LENGTH, HIDDEN, VOCAB = 2, 5, 6, 9
WEIGHT = torch.tensor([[0.0, 1.0, 0.5, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0, 2.0]])
IS_START = torch.tensor([[True, False, True, False, False], [True, True, False, False, False]])


def smooth_l1(a: torch.Tensor, b: torch.Tensor) -> float:
    total = 0.0
    for difference in (a - b).abs().tolist():
        total += 0.5 * difference**2 if difference < 1 else difference - 0.5
    return total / len(a)


@pytest.mark.parametrize("count_starts", [False, True])
def test_losses_are_weighted_means_over_positions(count_starts: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    of_rows = [2 * torch.randn(BATCH, LENGTH, HIDDEN, generator=generator) for _ in range(4)]
    feature_row, state_row, last_hidden, true_state = of_rows
    head, empty = 2 * torch.randn(VOCAB, HIDDEN, generator=generator), torch.empty(0)
    prediction = Prediction(feature_row.requires_grad_(), state_row.requires_grad_(), empty)
    target = Activations(empty, empty, last_hidden, true_state, empty)
    weights = LossSettings(cross_entropy=0.3, feature=0.8, count_starts=count_starts)
    losses = feature_losses(prediction, target, head, WEIGHT, weights, IS_START)
    losses.total.backward()
    assert feature_row.grad is not None
    assert state_row.grad is not None
    assert torch.equal(feature_row.grad.abs().sum(-1) > 0, WEIGHT > 0)
    assert torch.equal(state_row.grad.abs().sum(-1) > 0, (WEIGHT > 0) & ~IS_START)
    entropy = feature = state = agreed = 0.0
    for row in range(BATCH):
        for i in range(LENGTH):
            w = float(WEIGHT[row, i])
            teacher, drafter = head @ last_hidden[row, i], head @ feature_row[row, i]
            entropy -= w * float((teacher.softmax(-1) * drafter.log_softmax(-1)).sum())
            feature += w * smooth_l1(feature_row[row, i], last_hidden[row, i])
            agreed += w * float(teacher.argmax() == drafter.argmax())
            if not IS_START[row, i]:
                state += w * smooth_l1(state_row[row, i], true_state[row, i])
    total = float(WEIGHT.sum())
    counted = total if count_starts else float(WEIGHT[~IS_START].sum())
    assert (counted < total) != count_starts
    expected = {
        "cross_entropy": entropy / total,
        "feature": feature / total,
        "state": state / counted,
        "agreement": agreed / total,
        "total": 0.3 * entropy / total + 0.8 * 0.5 * (feature / total + state / counted),
    }
    assert {name: getattr(losses, name).item() for name in expected} == pytest.approx(expected, rel=1e-5)
    nothing = feature_losses(prediction, target, head, torch.zeros(BATCH, LENGTH), LossSettings(), IS_START)
    assert nothing.total.item() == 0.0

"""The losses (arXiv 2410.03804, training): cross-entropy with the target's distribution, smooth-L1 to its features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

Mean = Callable[[torch.Tensor], torch.Tensor]  # of a value over all processes


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a drafter predicts for a batch, [batch, length, hidden] each.

    Args:
        feature: what the head takes.
        state: predicted input of the first reused layer (None for N = 0).
        self_out: what its first layer gives.
    """

    feature: torch.Tensor
    state: torch.Tensor | None
    self_out: torch.Tensor


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses, as scalars; `agreement` is the share of weighted positions whose argmax is the teacher's.

    `feature` and `state` are None where no features are predicted, or no layers reused.
    """

    total: torch.Tensor
    cross_entropy: torch.Tensor
    feature: torch.Tensor | None
    state: torch.Tensor | None
    agreement: torch.Tensor


def guess_losses(
    logits: torch.Tensor, teacher: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted sums over guesses: cross-entropy with the teacher's distribution, and agreement of the first choices.

    Args:
        logits, teacher: [..., draft vocab]; weight: [...].
    """
    log_q = F.log_softmax(logits.float(), dim=-1)
    cross_entropy = -(weight * (teacher * log_q).sum(-1)).sum()
    return cross_entropy, (weight * (logits.argmax(-1) == teacher.argmax(-1))).sum()


def feature_losses(
    prediction: Prediction,
    target: Activations,
    head: torch.Tensor,
    weight: torch.Tensor,
    settings: LossSettings,
    is_start: torch.Tensor,
    mean: Mean = lambda own: own,
) -> Losses:
    """Losses over the positions that count; the head is applied to those only.

    Args:
        head: [draft vocab, hidden], frozen; the teacher's distribution is over the same tokens.
        weight: [batch, length] of each position.
        is_start: [batch, length] bool, block starts: no prediction of the state is made there.
        mean: from this process's sums of weights, [2], to their means over all processes: then the mean of all
            processes' losses is the loss of all their rows.
    """
    counted = weight > 0
    w = weight[counted]
    predicted = torch.where(is_start, 0.0, weight)
    sums = torch.stack((w.sum(), (weight if settings.count_starts else predicted).sum()))
    all_weight, all_predicted = mean(sums).clamp(min=1e-9)
    w = w / all_weight
    feature, truth = prediction.feature[counted], target.last_hidden[counted]
    with torch.no_grad():
        teacher = (truth @ head.t()).float().softmax(-1)
    cross_entropy, agreement = guess_losses(feature @ head.t(), teacher, w)
    feature_loss = (w * F.smooth_l1_loss(feature.float(), truth.float(), reduction="none").mean(-1)).sum()
    if prediction.state is None or target.state is None:
        total = settings.cross_entropy * cross_entropy + settings.feature * feature_loss
        return Losses(total, cross_entropy, feature_loss, None, agreement)
    error = F.smooth_l1_loss(prediction.state.float(), target.state.float(), reduction="none").mean(-1)
    state_loss = (predicted * error).sum() / all_predicted
    total = settings.cross_entropy * cross_entropy + settings.feature * 0.5 * (feature_loss + state_loss)
    return Losses(total, cross_entropy, feature_loss, state_loss, agreement)

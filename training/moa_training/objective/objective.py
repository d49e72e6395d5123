"""How drafters are trained: a network, where what it reads of the target starts, and its losses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from moa_shared.drafter import DrafterConfig
from moa_shared.drafter.layers.torch_layers import DecoderLayer, attend, rotate
from torch import nn
from torch.nn import functional as F

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.settings import FitSettings, LossSettings
from moa_training.teacher.teacher import Activations, Teacher

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


# From a layer's number and how many tokens: activations of the target, and the states that enter the layer.
Sample = Callable[[int, int], tuple[Activations, torch.Tensor]]
Turn = tuple[torch.Tensor, torch.Tensor]  # cosines and sines of rotary positions
_RIDGE = 1e-2  # of the mean square of the inputs; the regression's rows outnumber its columns by 5 or more


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a run gives its objective.

    Args:
        share: the rows that this process has of an update's.
        mean: of a value over all processes.
        draft_ids: the tokens that the drafter can propose; None: all.
    """

    settings: FitSettings
    config: DrafterConfig
    teacher: Teacher
    draft_ids: torch.Tensor | None = None
    share: RowShare = WHOLE
    mean: Mean = lambda own: own

    @property
    def head(self) -> torch.Tensor:
        """The target's, of the tokens that the drafter can propose."""
        head = self.teacher.head
        return head if self.draft_ids is None else head[self.draft_ids.to(head.device).long()].contiguous()


@dataclass(frozen=True, slots=True)
class Update:
    """What one update learns from.

    Args:
        spent: of the budget, 0 to 1.
        generator: of all that is drawn for it.
    """

    batch: PackedBatch
    target: Activations
    spent: float
    generator: torch.Generator


class Objective(ABC):
    """How drafters are trained whose kind names this objective."""

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.head = lesson.head

    def fit_inputs(self, network: Any, sample: Sample) -> None:  # noqa: B027 - some read nothing
        """Starts what the drafter reads of the target near the state that its layer was made for."""

    @abstractmethod
    def network(self) -> nn.Module:
        """The network in its training form; its tensors are the checkpoint's."""

    @abstractmethod
    def losses(self, module: Callable[..., Any], update: Update) -> Losses:
        """The losses of an update, by the network, which may be wrapped for several processes."""


@torch.no_grad()
def fit_projection(projection: nn.Linear, rows: torch.Tensor, truth: torch.Tensor) -> None:
    """Sets a projection, by ridge regression, so that it comes near `truth`, the input of the layer that the drafter's
    own begins as.

    Args:
        rows: [..., inputs]; truth: [..., hidden].
    """
    rows, truth = (part.flatten(0, -2).double() for part in (rows, truth))
    identity = torch.eye(rows.shape[1], device=rows.device, dtype=torch.float64)
    if projection.bias is None:
        gram = rows.t() @ rows
        ridge = _RIDGE * gram.diagonal().mean() * identity
        projection.weight.copy_(torch.linalg.solve(gram + ridge, rows.t() @ truth).t())
        return
    mean, level = rows.mean(0), truth.mean(0)
    centred = rows - mean
    ridge = _RIDGE * centred.square().mean() * len(centred) * identity
    solution = torch.linalg.solve(centred.t() @ centred + ridge, centred.t() @ (truth - level))  # [inputs, hidden]
    projection.weight.copy_(solution.t())
    projection.bias.copy_(level - mean @ solution)


def run_layer(
    layer: DecoderLayer, x: torch.Tensor, visible: torch.Tensor, turn: Turn, source: torch.Tensor | None = None
) -> torch.Tensor:
    """What leaves one of the drafter's layers.

    Args:
        visible: [batch, length, length] bool, who sees whom.
        source: rows that it attends to; None: its own.
    """
    normed, attention = layer.input_layernorm(x), layer.self_attn
    seen = normed if source is None else layer.input_layernorm(source)
    queries, keys = rotate(attention.queries(normed), *turn), rotate(attention.keys(seen), *turn)
    return layer.finish(x, attend(queries, keys, attention.values(seen), visible[:, None]))

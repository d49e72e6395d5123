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

from moa_training.data.batches import WHOLE, PackedBatch, RowShare
from moa_training.objective.losses import Losses, Mean
from moa_training.settings import FitSettings
from moa_training.teacher.teacher import Activations, Teacher

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

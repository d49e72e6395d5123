"""The losses of drafters that read the target's states: what is drawn for a batch, and what the target says there.

Invariant: draws depend on the generator alone, and weights are divided by the sums over all processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from moa_shared.drafter import DrafterConfig

from moa_training.data.packing import PackedBatch
from moa_training.fit.processes import Processes
from moa_training.objective.blocks_at_once import draw_anchors, place_blocks
from moa_training.objective.eagle3 import eagle3_rows, step_weights, teach
from moa_training.objective.losses import Losses
from moa_training.objective.network import Activations
from moa_training.settings import FitSettings

Network = Callable[..., Losses]


class StateLosses:
    """The losses of one drafter.

    Args:
        head: the target's, [vocab, hidden]; draft_ids: the tokens that the drafter can propose, None: all.
    """

    def __init__(
        self,
        settings: FitSettings,
        config: DrafterConfig,
        processes: Processes,
        head: torch.Tensor,
        draft_ids: torch.Tensor | None,
    ) -> None:
        self._settings, self._config, self._processes = settings, config, processes
        self._head = head
        self._draft_ids = None if draft_ids is None else draft_ids.to(head.device).long()
        self._own_head = head if self._draft_ids is None else head[self._draft_ids].contiguous()

    def __call__(self, network: Network, target: Activations, batch: PackedBatch, generator: torch.Generator) -> Losses:
        """Of a batch, by a network in its training form."""
        run = self._of_steps if self._config.traits.objective == "steps" else self._of_blocks
        losses, counted = run(network, target, batch, generator)
        return replace(losses, agreement=losses.agreement / counted.clamp(min=1e-9))

    def _of_steps(
        self, network: Network, target: Activations, batch: PackedBatch, generator: torch.Generator
    ) -> tuple[Losses, torch.Tensor]:
        settings = self._settings
        with torch.no_grad():
            teacher, proposable = teach(target.last_hidden, self._head, self._draft_ids)
        weight, rows = step_weights(
            batch, proposable, settings.blocks, settings.losses.steps, settings.losses.step_decay
        )
        all_weight, all_rows = self._processes.mean(torch.stack((weight.sum(), rows)))
        return network(eagle3_rows(target, batch), teacher, weight / all_rows), all_weight / all_rows

    def _of_blocks(
        self, network: Network, target: Activations, batch: PackedBatch, generator: torch.Generator
    ) -> tuple[Losses, torch.Tensor]:
        settings = self._settings
        anchors, counts = draw_anchors(batch, settings.blocks, generator, self._processes.share)
        blocks = place_blocks(batch, anchors, counts, self._config.block_size, settings.losses.guess_decay)
        with torch.no_grad():
            teacher = (target.last_hidden @ self._own_head.t()).float().softmax(-1)
        total = self._processes.mean(blocks.weight.sum()).clamp(min=1e-9)
        divided = replace(blocks, weight=blocks.weight / total)
        return network(target, divided, self._own_head, teacher), torch.ones_like(total)

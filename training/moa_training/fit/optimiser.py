"""AdamW over float32 master copies of weights that compute in bfloat16, and its learning rate.

State: the master copies and their moments. Invariant: after a step each weight is its master, rounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from moa_shared.errors import CheckpointError
from torch import nn

from moa_training.settings import OptimiserSettings

_MOMENTS = ("exp_avg", "exp_avg_sq")


def learning_rate(settings: OptimiserSettings, step: int, progress: float) -> float:
    """Learning rate at update `step` (from 0), with `progress` (0 to 1) of the budget spent.

    cosine: linear warm-up, then half a cosine to the final rate. authors: linear warm-up, then linear to the final rate
    over one fortieth of the run (one of their 40 epochs), then constant (REFERENCE of the published code).
    """
    warm = min(1.0, (step + 1) / settings.warmup_steps) if settings.warmup_steps else 1.0
    progress = min(1.0, max(0.0, progress))
    if settings.schedule == "authors":
        share = max(0.0, 1.0 - 40.0 * progress)
    else:
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    low = settings.final_learning_rate
    return warm * (low + (settings.learning_rate - low) * share)


class MasterWeights:
    """The optimiser of a module's trainable parameters.

    Args:
        start: float32 values by parameter name; a module in bfloat16 has already lost their low bits.
    """

    def __init__(self, module: nn.Module, settings: OptimiserSettings, start: Mapping[str, torch.Tensor]) -> None:
        self._weights = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
        self.masters = {name: start[name].to(w.device, torch.float32).clone() for name, w in self._weights.items()}
        self._clip = settings.clip
        self._adam = torch.optim.AdamW(
            list(self.masters.values()), lr=0.0, betas=(settings.beta1, settings.beta2), weight_decay=0.0
        )
        self._write_back()

    def step(self, rate: float) -> float:
        """One update from the gradients that lie in the module, which are dropped; their norm before clipping."""
        for name, weight in self._weights.items():
            gradient = weight.grad
            self.masters[name].grad = None if gradient is None else gradient.float()
            weight.grad = None
        norm = float(nn.utils.clip_grad_norm_(list(self.masters.values()), self._clip))
        if norm == norm and norm != float("inf"):  # a batch that overflowed teaches nothing
            for group in self._adam.param_groups:
                group["lr"] = rate
            self._adam.step()
        for master in self.masters.values():
            master.grad = None
        self._write_back()
        return norm

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed run needs, by name."""
        tensors = {f"master.{name}": master for name, master in self.masters.items()}
        for name, master in self.masters.items():
            held = self._adam.state.get(master, {})
            tensors |= {f"{moment}.{name}": held[moment] for moment in _MOMENTS if moment in held}
            if "step" in held:
                tensors[f"step.{name}"] = held["step"]
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Takes up what `state` gave; raises CheckpointError if that was of another drafter."""
        for name, master in self.masters.items():
            saved = tensors.get(f"master.{name}")
            if saved is None or saved.shape != master.shape:
                raise CheckpointError(
                    f"The training state does not fit the drafter: {name} is missing or of another shape.",
                    hint="Give the run another output folder, or the configuration that it was begun with.",
                )
            master.copy_(saved)
            if f"exp_avg.{name}" in tensors:
                self._adam.state[master] = {
                    "step": tensors[f"step.{name}"].clone(),
                    **{moment: tensors[f"{moment}.{name}"].to(master.device).clone() for moment in _MOMENTS},
                }
        self._write_back()

    @torch.no_grad()
    def _write_back(self) -> None:
        for name, weight in self._weights.items():
            weight.copy_(self.masters[name])

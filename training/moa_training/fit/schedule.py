"""The learning rate. Pure."""

from __future__ import annotations

import math

from moa_training.settings import OptimiserSettings


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

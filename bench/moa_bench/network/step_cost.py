"""What a forward of the measured server costs, as the server tells its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_bench.harness.split_client import describe

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class StepCost:
    """What a forward costs, in milliseconds.

    Args:
        step_ms: of a plain step.
        row_ms: of each further row.
    """

    step_ms: float
    row_ms: float


# Of the default target in torch, which measures nothing at the start: bf16 on one core with AMX.
TORCH_COST = StepCost(49.0, 0.85)


def ask_step_cost(runner: asyncio.Runner, address: str) -> StepCost:
    """What the server at this "host:port" measured when it started; TORCH_COST where it did not.

    Raises:
        MoaError: the server cannot be reached.
    """
    described = runner.run(describe(address))
    return StepCost(described.step_ms, described.row_ms) if described.step_ms else TORCH_COST

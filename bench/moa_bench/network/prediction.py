"""What the event simulation expects of a measured answer: the same luck of the oracle, link, and cost of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moa_client.drafting.settings import DraftingSettings

from moa_bench.network.emulated import Link
from moa_bench.network.oracle import Script
from moa_bench.network.step_cost import StepCost
from moa_bench.report.answers import TimedAnswer
from moa_bench.simulation.answer import SimulatedLink, simulate
from moa_bench.simulation.device import CLIENT_MS
from moa_bench.simulation.server import Costs

ENCODE_SHARE = 0.02  # of a plain step: encoding the memory row of a new token (docs/bench.md)
MEMORY_BYTES = 260  # that follow each token down in int4

Drafting = Literal["streamed", "waiting", "rounds"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a way drafts.

    Args:
        drafting: streamed drafts; the same with a server that waits for them; synchronous rounds.
        length: of a round's chain.
        draft_ms: of a draft step.
    """

    drafting: Drafting
    length: int
    draft_ms: float


def predict_seconds(schedule: Schedule, link: Link, script: Script, plain: TimedAnswer, cost: StepCost) -> float:
    """How long the whole answer should take, if a plain step takes as long as it did in `plain`.

    Args:
        cost: of forwards; the share of a step that a row more takes is used.
    """
    tokens = len(plain.tokens)
    step_ms = 1e3 / plain.steady_tokens_per_s
    answer_start = len(script.tokens) - tokens
    rounds, waits = schedule.drafting == "rounds", schedule.drafting == "waiting"
    outcome = simulate(
        lambda number: script.right_at(answer_start + number),
        SimulatedLink(link.conditions, MEMORY_BYTES),
        tokens=tokens,
        seed=script.seed,
        costs=Costs(
            plain_ms=step_ms * (1 + ENCODE_SHARE),
            verify_ms=step_ms * (1 + ENCODE_SHARE),
            node_ms=step_ms * cost.row_ms / cost.step_ms,
            draft_ms=schedule.draft_ms + CLIENT_MS,
        ),
        drafting=DraftingSettings("device", rounds=rounds, run_ahead=not (rounds or waits)),
        round_length=schedule.length,
    )
    return plain.arrivals_s[0] + (outcome.arrivals_ms[-1] - outcome.arrivals_ms[0]) / 1e3

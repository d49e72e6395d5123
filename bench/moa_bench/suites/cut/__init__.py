"""`moa-bench cut`: answers whose link is cut or reset, or whose server is killed, at random times; recorded outages."""

from dataclasses import dataclass

import click
from moa_shared.protocol.levels import INT8

from moa_bench.harness.questions import PACKAGED
from moa_bench.options import option
from moa_bench.suite import Suite, SuiteInputs

LOADING_S = 20.0  # of two servers, one of which waits to take the other's place
INCIDENT_S = 1.6  # with the wait before it


@dataclass(frozen=True, slots=True)
class CutEffort:
    """How many incidents of each kind, and how long the answers are."""

    link: str = option("5G", "The link that is cut; not RTT 0.", metavar="NAME")
    cuts: int = option(100, "Cuts of the link.", least=0)
    kills: int = option(25, "Kills of the server.", least=0)
    resets: int = 20
    asked: int = option(20, "Questions, in turn.", least=1)
    answer_tokens: int = option(96, "Of each answer.", "--tokens", least=2)
    of_outage: int = 3  # answers that meet each recorded outage
    seed: int = 0


def estimate_s(effort: CutEffort, step_s: float) -> float:
    incidents = effort.cuts + effort.kills + effort.resets
    answer_s = (60 + effort.answer_tokens) * step_s
    return LOADING_S + 240 * step_s + effort.asked * answer_s + (INCIDENT_S + answer_s / 2) * incidents


def refuse(effort: CutEffort, inputs: SuiteInputs) -> None:
    if inputs.level != INT8 and inputs.questions != PACKAGED:
        raise click.UsageError(f"Only at {INT8} no cut changes a near tie: leave --questions or --level out.")


SUITE = Suite(
    "cut",
    "Whether answers stay whole, and how long they stall, when the link is cut or the server killed.",
    "moa_bench.suites.cut",
    CutEffort(),
    CutEffort(cuts=2, resets=1, kills=1, asked=1, answer_tokens=32, of_outage=1),
    ("model", "level", "pin", "questions", "traces", "shape", "stored"),
    estimate_s,
    refuse,
)

"""`moa-bench hostile`: one honest client, and attackers one kind after the other on the same server."""

from dataclasses import dataclass

from moa_bench.options import option
from moa_bench.report.report import SECURITY
from moa_bench.suite import Suite

LOADING_S = 30.0
ATTACKS = 18
ANSWER_S = 0.7  # of 64 tokens


@dataclass(frozen=True, slots=True)
class HostileEffort:
    """How much of an attack to measure."""

    answers: int = 4  # of the honest client before, during and after each attack
    answer_tokens: int = 64
    settle_seconds: float = 2.0  # between an attack and what is measured after it
    attacks: tuple[str, ...] = option((), "Only this one (repeat).", "--attack", metavar="NAME", shown="all")


def estimate_s(effort: HostileEffort) -> float:
    one = 3 * effort.answers * ANSWER_S * effort.answer_tokens / 64 + effort.settle_seconds + 1.0
    return LOADING_S + (len(effort.attacks) or ATTACKS) * one


SUITE = Suite(
    "hostile",
    "How one honest client's gaps between tokens and the server's memory grow next to attackers.",
    "moa_bench.suites.hostile",
    SECURITY,
    HostileEffort(),
    HostileEffort(1, 8, 0.2),
    ("model", "level", "pin"),
    estimate_s,
)

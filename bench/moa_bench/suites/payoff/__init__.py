"""`moa-bench payoff`: all users of a server at once, by round trip and by their number, in each way to draft."""

from dataclasses import dataclass

from moa_bench.report.report import PAYOFF
from moa_bench.suite import Suite

LOADING_S = 60.0
APART_S = 2.0  # in which several users begin, one after the other: most of an answer of one of sixteen
RUNS = 5  # of users in a round: the four ways, and plain serving again


@dataclass(frozen=True, slots=True)
class PayoffEffort:
    """How much to measure."""

    rtts_ms: tuple[float, ...] = (0.0, 100.0, 300.0)  # round trips of the users' links; 0: loopback
    users: tuple[int, ...] = (1, 4, 16)  # who ask at the same time
    rounds: int = 2  # of all ways in turn
    seconds: float = 4.0  # for which they ask, in each way
    answer_tokens: int = 64  # of each answer
    seed: int = 0  # of prompts and links


def estimate_s(effort: PayoffEffort) -> float:
    of_all_users = sum(effort.seconds + 1.0 + (APART_S if users > 1 else 0.0) for users in effort.users)
    return LOADING_S + len(effort.rtts_ms) * effort.rounds * RUNS * of_all_users


SUITE = Suite(
    "payoff",
    "Where drafts pay: the best way by round trip and by how many users ask at once, as a map.",
    "moa_bench.suites.payoff",
    PAYOFF,
    PayoffEffort(),
    PayoffEffort((0.0, 50.0), (1, 2), 1, 5.0, 24),
    ("model", "level", "pin", "shape", "stored"),
    estimate_s,
)

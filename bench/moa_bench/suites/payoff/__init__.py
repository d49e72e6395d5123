"""`moa-bench payoff`: all users of a server at once, by round trip and by their number, in each way to draft."""

from dataclasses import dataclass

from moa_bench.harness.shapes import READ_SHARE, SLOW_STEP_S
from moa_bench.options import option
from moa_bench.suite import Suite

LOADING_S = 15.0
SHORT = 40, 120  # tokens of prompts
RUNS = 5  # of users in a round: the four ways, and plain serving again


@dataclass(frozen=True, slots=True)
class PayoffEffort:
    """How much to measure."""

    rtts_ms: tuple[float, ...] = (0.0, 100.0, 300.0)  # round trips of the users' links; 0: loopback
    users: tuple[int, ...] = (1, 4, 16)  # who ask at the same time
    rounds: int = 2  # of all ways in turn
    seconds: float = option(4.0, "For which they ask, in each way.", least=1)
    answer_tokens: int = option(64, "Of each answer.", "--tokens", least=2)
    seed: int = 0  # of prompts and links
    apart_s: float = 2.0  # in which several users begin, one after the other: most of an answer of one of sixteen
    acceptances: tuple[float, ...] = option(
        (0.8,), "Of the oracle of a target without drafters (repeat).", "--acceptance", least=0, most=1
    )


def estimate_s(effort: PayoffEffort, step_s: float) -> float:
    of_all_users = sum(effort.seconds + 1.0 + (effort.apart_s if users > 1 else 0.0) for users in effort.users)
    texts_s = 2 * max(effort.users) * step_s * (READ_SHARE * 80 + effort.answer_tokens / 2)
    runs = RUNS if step_s < SLOW_STEP_S else 2 + len(effort.acceptances)
    return LOADING_S + 100 * step_s + texts_s + len(effort.rtts_ms) * effort.rounds * runs * of_all_users


SUITE = Suite(
    "payoff",
    "Where drafts pay: the best way by round trip and by how many users ask at once, as a map.",
    "moa_bench.suites.payoff",
    PayoffEffort(),
    PayoffEffort((0.0, 50.0), (1, 2), 1, 4.0, 24, apart_s=0.5),
    ("model", "level", "pin", "shape", "stored"),
    estimate_s,
)

"""`moa-bench micro`: what the parts cost; one thread each."""

from __future__ import annotations

from dataclasses import dataclass, field

from moa_bench.report.report import PARTS
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class OverheadEffort:
    """How much of a server's steps to measure.

    Args:
        sessions: that answer at the same time.
        prompt_tokens, answer_tokens: of each.
        rounds: times that all ask, in each way.
    """

    sessions: tuple[int, ...] = (1, 16)
    prompt_tokens: int = 64
    answer_tokens: int = 192
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class MicroEffort:
    """How much to measure.

    Args:
        prefix_tokens: before forwards and drafts: a question and half of its answer.
        repeats: of each forward; 20 pairs give ratios to about 1 % on a quiet machine.
        prompt_tokens: lengths of the prompts whose first token is timed.
        answer_tokens: of each answer that is timed or counted.
        answers: of each kind.
        overhead: of a server's steps.
    """

    prefix_tokens: int = 256
    repeats: int = 20
    prompt_tokens: tuple[int, ...] = (50, 500)
    answer_tokens: int = 64
    answers: int = 5
    overhead: OverheadEffort = field(default_factory=OverheadEffort)


SUITE = Suite(
    "micro",
    "What the parts cost: verification, draft step, first token, bytes; one thread each.",
    "moa_bench.suites.micro",
    PARTS,
    MicroEffort(),
    MicroEffort(64, 2, (50,), 32, 1, OverheadEffort(answer_tokens=32, rounds=1)),
    ("model", "level", "pin"),
    lambda effort: 45.0 + 4.0 * effort.repeats,
)

"""`moa-bench micro`: what the parts cost; one thread each."""

from dataclasses import dataclass

from moa_bench.report.report import PARTS
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class MicroEffort:
    """How much to measure."""

    prefix_tokens: int = 256  # before forwards and drafts: a question and half of its answer
    repeats: int = 20  # of each forward: so many pairs give ratios to about 1 % on a quiet machine
    prompt_tokens: tuple[int, ...] = (50, 500)  # lengths of the prompts whose first token is timed
    answer_tokens: int = 64
    answers: int = 5  # of each kind


SUITE = Suite(
    "micro",
    "What the parts cost: verification, draft step, first token, bytes; one thread each.",
    "moa_bench.suites.micro",
    PARTS,
    MicroEffort(),
    MicroEffort(64, 2, (50,), 32, 1),
    ("model", "level", "pin"),
    lambda effort: 45.0 + 4.0 * effort.repeats,
)

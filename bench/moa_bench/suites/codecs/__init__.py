"""`moa-bench codecs`: what each memory codec costs on the wire, and what it costs the drafter."""

from dataclasses import dataclass

from moa_bench.report.report import LINK
from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class CodecsEffort:
    """How many prompts, and how many tokens of each answer."""

    prompts: int = 12
    answer_tokens: int = 96


SUITE = Suite(
    "codecs",
    "What each memory codec costs on the wire and in acceptance.",
    "moa_bench.suites.codecs",
    LINK,
    CodecsEffort(),
    CodecsEffort(1, 16),
    ("model",),
    lambda effort: 20 + 0.04 * effort.prompts * effort.answer_tokens,
)

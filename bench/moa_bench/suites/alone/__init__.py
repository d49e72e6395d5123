"""`moa-bench alone`: quality against the share of the answer that was served, for each drafter and for none."""

from dataclasses import dataclass

from moa_bench.options import TEMPERATURE, option
from moa_bench.suite import Suite

DRAFTERS = 3  # those in the package, and prompt look-up
CATEGORIES = 3  # of the questions in the package
QUESTION_S = 20.0  # of one drafter, with answers of 128 tokens and its task's result


@dataclass(frozen=True, slots=True)
class AloneEffort:
    """How much to measure."""

    questions: int = 2  # of each category
    answer_tokens: int = 128  # of an answer, at most
    longest_prompt: int = 512  # questions with more tokens are not asked
    alone_tokens: int = 96  # written after each cut
    task_tokens: int = 192  # of an answer whose result is checked; 0: none is
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


def estimate_s(effort: AloneEffort) -> float:
    return DRAFTERS * CATEGORIES * effort.questions * QUESTION_S * effort.answer_tokens / 128


SUITE = Suite(
    "alone",
    "What a device writes without its server, by the share of the answer that it had; and what an API client has.",
    "moa_bench.suites.alone",
    AloneEffort(),
    AloneEffort(1, 16, 128, 8, 0),
    ("model", "level", "pin", "questions", "drafters"),
    estimate_s,
)

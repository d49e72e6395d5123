"""`moa-bench single`: all ways to draft on one device, and what a user would run instead, question by question."""

from dataclasses import dataclass

from moa_bench.report.report import SINGLE
from moa_bench.suite import Suite

CATEGORIES = 3  # of the questions in the package
LOADING_S = 40.0
TOKEN_S = 0.4  # of all methods together, on a core of 2.1 GHz


@dataclass(frozen=True, slots=True)
class SingleEffort:
    """How much to measure.

    The drafts' sizes are those with which `moa-train evaluate` compares drafters; none was chosen by these figures.
    """

    questions: int = 1  # of each category
    answer_tokens: int = 96  # at most; an answer ends where the target ends it
    shortest_answer: int = 16  # shorter ones are left out of the figures: their time is the first token's
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes
    copies: int = 10  # nodes of a chain that prompt look-up copies
    depth: int = 5  # of a tree, as what follows
    breadth: int = 6
    nodes: int = 24


def estimate_s(effort: SingleEffort) -> float:
    return LOADING_S + CATEGORIES * effort.questions * effort.answer_tokens * TOKEN_S


SUITE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to llama.cpp.",
    "moa_bench.suites.single",
    SINGLE,
    SingleEffort(),
    SingleEffort(1, 16, 4, 300),
    ("model", "level", "pin", "questions", "drafters", "llama_cpp"),
    estimate_s,
)

"""`moa-bench single`: all ways to draft on one device, and what a user would run instead, question by question."""

from dataclasses import dataclass

from moa_bench.harness.shapes import ACCEPTANCES, READ_SHARE, SLOW_STEP_S
from moa_bench.options import TEMPERATURE, option
from moa_bench.suite import Suite

CATEGORIES = 3  # of the questions in the package
PROMPT_TOKENS = 100  # of a question, on average
LOADING_S = 20.0
ANSWERS, SIZED_ANSWERS = 22.0, 15.0  # plain ones that take as long as all of a question's, with peers; with oracles


@dataclass(frozen=True, slots=True)
class SingleEffort:
    """How much to measure.

    The drafts' sizes are those with which `moa-train evaluate` compares drafters; none was chosen by these figures.
    """

    asked: int = option(7, "Questions of each category.", least=1)
    answer_tokens: int = option(64, "Of an answer, at most; it ends where the target ends it.", "--tokens", least=2)
    shortest_answer: int = 16  # shorter ones are left out of the figures: their time is the first token's
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes
    copies: int = 10  # nodes of a chain that prompt look-up copies
    depth: int = 5  # of a tree, as what follows
    breadth: int = 6
    nodes: int = 24
    acceptances: tuple[float, ...] = option(
        ACCEPTANCES, "Of the oracle of a target without drafters (repeat).", "--acceptance", least=0, most=1
    )
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


def estimate_s(effort: SingleEffort, step_s: float) -> float:
    answers = ANSWERS if step_s < SLOW_STEP_S else SIZED_ANSWERS
    answer_s = step_s * (READ_SHARE * min(PROMPT_TOKENS, effort.longest_prompt / 2) + effort.answer_tokens)
    return LOADING_S + 200 * step_s + CATEGORIES * effort.asked * answers * answer_s


SUITE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to llama.cpp and transformers.",
    "moa_bench.suites.single",
    SingleEffort(),
    SingleEffort(1, 16, 4, 300, acceptances=(0.8,)),
    ("model", "level", "pin", "questions", "drafters", "llama_cpp", "shape", "stored"),
    estimate_s,
)

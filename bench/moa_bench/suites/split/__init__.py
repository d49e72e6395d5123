"""`moa-bench split`: all ways to draft over links, with every drafter, question by question."""

from dataclasses import dataclass

import click

from moa_bench.harness.shapes import ACCEPTANCES, READ_SHARE
from moa_bench.options import TEMPERATURE, option
from moa_bench.suite import Suite, SuiteInputs

LOADING_S = 15.0
ANSWERS = 8  # to a question: plain streaming twice, the server's drafts, everything on, and two of each drafter
PROMPT_TOKENS = 70  # of a question, on average
OVERHEAD_S = 0.7  # of an answer: its connection and its round trips


@dataclass(frozen=True, slots=True)
class SplitEffort:
    """How much to measure."""

    asked: int = option(20, "Questions over each link, of all methods.", least=1)
    answer_tokens: int = option(64, "Of each answer, whatever the target chooses.", "--tokens", least=2)
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes of a chain that is sent whole
    links: tuple[str, ...] = option(("5G", "4G", "RTT 150 ms"), "Only this link (repeat).", "--link", metavar="NAME")
    acceptances: tuple[float, ...] = option(
        ACCEPTANCES, "Of the oracle of a target without drafters (repeat).", "--acceptance", least=0, most=1
    )
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


def estimate_s(effort: SplitEffort, step_s: float) -> float:
    answer_s = OVERHEAD_S + step_s * (READ_SHARE * min(PROMPT_TOKENS, effort.longest_prompt / 2) + effort.answer_tokens)
    return LOADING_S + 200 * step_s + len(effort.links) * effort.asked * ANSWERS * answer_s


def refuse(effort: SplitEffort, inputs: SuiteInputs) -> None:
    if not inputs.suffix and effort.acceptances != ACCEPTANCES:
        raise click.UsageError("--acceptance needs --shape, or another --model.")
    if inputs.shape is not None and inputs.drafters:
        raise click.UsageError("No drafter has learnt random weights: leave --drafter out with --shape.")


SUITE = Suite(
    "split",
    "Client and server over links: all ways to draft with every drafter, next to plain streaming.",
    "moa_bench.suites.split",
    SplitEffort(),
    SplitEffort(1, 12, chain=3, links=("RTT 0", "4G")),
    ("model", "level", "pin", "questions", "drafters", "traces", "shape", "stored"),
    estimate_s,
    refuse,
)

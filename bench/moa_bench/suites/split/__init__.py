"""`moa-bench split`: all ways to draft over links, with every drafter, question by question."""

from dataclasses import dataclass

import click

from moa_bench.options import option
from moa_bench.report.report import SPLIT
from moa_bench.suite import Suite, SuiteInputs

LOADING_S = 60.0
ANSWER_S = 2.5  # of 64 tokens, on average over links and methods
ANSWERS = 10  # to a question: plain streaming twice, the server's drafts, everything on, and three of each drafter


@dataclass(frozen=True, slots=True)
class SplitEffort:
    """How much to measure."""

    questions: int = 2  # asked over each link, of all methods
    answer_tokens: int = 64  # of an answer, whatever the target chooses
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes of a chain that is sent whole
    links: tuple[str, ...] = option(
        ("RTT 0", "wired", "5G", "4G", "RTT 100 ms", "RTT 300 ms"), "Only this link (repeat).", "--link", metavar="NAME"
    )
    acceptances: tuple[float, ...] = option(
        (0.8,), "Of the oracle that drafts with --shape (repeat).", "--acceptance", least=0, most=1
    )


def estimate_s(effort: SplitEffort) -> float:
    return LOADING_S + len(effort.links) * effort.questions * ANSWERS * ANSWER_S * effort.answer_tokens / 64


def refuse(effort: SplitEffort, inputs: SuiteInputs) -> None:
    if inputs.shape is None and effort.acceptances != SplitEffort().acceptances:
        raise click.UsageError("--acceptance needs --shape.")
    if inputs.shape is not None and inputs.drafters:
        raise click.UsageError("No drafter has learnt random weights: leave --drafter out with --shape.")


SUITE = Suite(
    "split",
    "Client and server over links: all ways to draft with every drafter, next to plain streaming.",
    "moa_bench.suites.split",
    SPLIT,
    SplitEffort(),
    SplitEffort(1, 12, chain=3, links=("RTT 0", "4G")),
    ("model", "level", "pin", "questions", "drafters", "traces", "shape", "stored"),
    estimate_s,
    refuse,
)

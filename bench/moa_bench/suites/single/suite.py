"""`moa-bench single`: all ways to draft on one device, and what a user would run instead, question by question."""

from __future__ import annotations

from dataclasses import dataclass

import click

from moa_bench.options import option
from moa_bench.report.report import SINGLE
from moa_bench.suite import Suite

CATEGORIES = 3  # of the questions in the package
LOADING_S = 40.0
TOKEN_S = 0.6  # of all methods together, with transformers on two levels, on a core of 2.1 GHz


@dataclass(frozen=True, slots=True)
class SingleEffort:
    """How much to measure.

    The drafts' sizes are those with which `moa-train evaluate` compares drafters; none was chosen by these figures.

    Args:
        questions: of each category.
        answer_tokens: of an answer at most; it ends where the target ends it.
        shortest_answer: questions with shorter answers are left out of the figures: their time is the first token's.
        longest_prompt: questions with more tokens are not asked.
        chain: nodes of a chain; `copies`: of one that prompt look-up copies.
        depth, breadth, nodes: of a tree.
    """

    questions: int = 1
    answer_tokens: int = 96
    shortest_answer: int = 16
    longest_prompt: int = 600
    chain: int = 5
    copies: int = 10
    depth: int = 5
    breadth: int = 6
    nodes: int = 24
    assistant: str | None = option(None, "A smaller model for transformers' assisted generation.", metavar="MODEL")
    peers: bool = option(True, "Run transformers and llama.cpp too.  [on]", "--peers/--no-peers")


def estimate_s(effort: SingleEffort) -> float:
    """About how many seconds it takes, with the shipped drafters and the default model."""
    return LOADING_S + CATEGORIES * effort.questions * effort.answer_tokens * TOKEN_S


def _fetch(context: click.Context, parameter: click.Parameter, is_wanted: bool) -> None:
    if not is_wanted:
        return
    from moa_shared.models.sources.cache import cache_root
    from moa_shared.programs.progress import make_progress

    from moa_bench.suites.single.peers.llama_cpp import fetch

    click.echo(fetch(cache_root(), make_progress()))
    context.exit()


SUITE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to transformers and llama.cpp.",
    "moa_bench.suites.single",
    SINGLE,
    SingleEffort(),
    SingleEffort(1, 16, 4, 300),
    ("model", "level", "pin", "questions", "drafters"),
    estimate_s,
    options=(
        click.Option(
            ["--fetch-llama-cpp"], is_flag=True, is_eager=True, expose_value=False, callback=_fetch,
            help="Install llama.cpp into the cache with npm, and nothing else.",
        ),
    ),
)  # fmt: skip

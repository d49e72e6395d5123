"""`moa-bench capacity`: more and more users on one server, all in one process on the other core."""

from dataclasses import dataclass

import click

from moa_bench.harness.shapes import READ_SHARE
from moa_bench.options import option
from moa_bench.suite import Suite, SuiteInputs
from moa_bench.users.questions import UsersEffort, length_at
from moa_bench.users.strategies import KINDS, Drafts, make_strategies

LOADING_S = 15.0


@dataclass(frozen=True, slots=True)
class CapacityEffort(UsersEffort):
    """How much to measure, and who drafts."""

    kinds: tuple[Drafts, ...] = option(KINDS, "Only this way besides plain serving (repeat).", "--way")
    acceptances: tuple[float, ...] = option(
        (0.6, 0.8), "Of an oracle: only this one (repeat).", "--acceptance", least=0, most=1
    )
    links: tuple[str, ...] = option(
        (), "Users take these in turn (repeat).", "--link", metavar="NAME", shown="loopback"
    )


def estimate_s(effort: CapacityEffort, step_s: float) -> float:
    ways = len(make_strategies(effort.kinds, effort.acceptances))
    tokens = length_at(0.5, effort.prompt_tokens) * READ_SHARE + effort.answer_tokens / 2
    texts_s = max(effort.users) * effort.prompts * tokens * step_s
    return LOADING_S + 100 * step_s + texts_s + ways * len(effort.users) * (effort.seconds + 1.0)


def refuse(effort: CapacityEffort, inputs: SuiteInputs) -> None:
    if inputs.shape is not None and effort.kinds != KINDS and not {"plain", "oracle"}.issuperset(effort.kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")


SUITE = Suite(
    "capacity",
    "Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without devices' drafts.",
    "moa_bench.suites.capacity",
    CapacityEffort(),
    CapacityEffort((1, 4, 16), 7.0, 1, acceptances=(0.8,)),
    ("model", "level", "pin", "shape", "stored"),
    estimate_s,
    refuse,
)

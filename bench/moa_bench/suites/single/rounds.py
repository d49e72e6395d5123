"""One question, asked of all methods in turn; plain serving answers it first and last.

A round is JSON from here on. Pure but for what the methods do.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from moa_bench.harness.answers import TimedAnswer, common_tokens
from moa_bench.report.energy import METER
from moa_bench.report.interleave import rotated, without_collector
from moa_bench.suites.single.figures import PLAIN
from moa_bench.suites.single.local_server import LocalAnswer


@dataclass(frozen=True, slots=True)
class MethodAnswer:
    """An answer and what it took."""

    tokens: tuple[int, ...]
    first_ms: float  # from the question to the first token
    steady_ms: float  # from there to the last
    forwards: int | None = None  # after the first token; None: the method does not say
    nodes: int | None = None  # verified in them
    cpu_s: float = 0.0  # of the process that answered, its reading of the prompt included
    joules: float | None = None  # of the whole processor meanwhile; None: nothing counts them

    @classmethod
    def local(cls, answer: LocalAnswer) -> "MethodAnswer":
        nodes = sum(step.nodes for step in answer.steps)
        return cls(answer.tokens, answer.reading_ms, answer.stepping_ms, len(answer.steps), nodes)

    @classmethod
    def timed(cls, answer: TimedAnswer) -> "MethodAnswer":
        """Of one that was watched as it came."""
        return cls(answer.tokens, answer.first_ms, 1e3 * answer.arrivals_s[-1] - answer.first_ms)


Ask = Callable[[Sequence[int], int], MethodAnswer]  # the prompt's tokens, and how many new ones at most


def ask_round(
    exact: Mapping[str, Ask],
    others: Mapping[str, Ask],
    prompt: Sequence[int],
    cpu_s: Callable[[str], float] = lambda method: time.process_time(),
    *,
    most: int,
    least: int,
    turn: int = 0,
) -> dict[str, Any]:
    """The answers of all methods to one question; only plain serving's if that is short.

    Args:
        exact: methods that promise plain serving's text, among them PLAIN.
        others: those with a text of their own, which are given the number of tokens of plain serving's.
        cpu_s: processor time of the process that answers in a way, so far.
        most: tokens of an answer; `least`: of one whose question is asked of all.
        turn: which of the methods begins after plain serving.

    Returns:
        {"prompt_tokens", "tokens", "short", "answers": {method: [what each answer took]}}.
    """

    def ask(name: str, count: int) -> MethodAnswer:
        before_s, energy = cpu_s(name), METER.read()
        answer = {**exact, **others}[name](prompt, count)
        return replace(answer, cpu_s=cpu_s(name) - before_s, joules=METER.joules_since(energy))

    with without_collector():
        first = ask(PLAIN, most)
        count = len(first.tokens)
        short = count < max(2, least)
        taken = {PLAIN: [_cell(first, first.tokens)]}
        if not short:
            for name in rotated([name for name in (*exact, *others) if name != PLAIN], turn):
                taken[name] = [_cell(ask(name, most if name in exact else count), first.tokens)]
            taken[PLAIN].append(_cell(ask(PLAIN, most), first.tokens))
    return {"prompt_tokens": len(prompt), "tokens": count, "short": short, "answers": taken}


def _cell(answer: MethodAnswer, reference: Sequence[int]) -> dict[str, Any]:
    """What an answer took; in place of its tokens their number, and how many first ones are plain serving's."""
    common = common_tokens(answer.tokens, reference)
    same = len(answer.tokens) == len(reference) == common
    fields = asdict(answer) | {"tokens": len(answer.tokens), "common": common, "same": same}
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in fields.items()}

"""Figures of a run's rounds: speeds, ratios of pairs, acceptance, by category and in all. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from moa_bench.report.spread import Spread, paired_ratio

# What results and tables call the methods that they treat by themselves.
LLAMA_CPP = "llama.cpp"
TRANSFORMERS = "transformers, bfloat16"
LOOKUP_MODE, DRAFT_MODE = ", its look-up", ", a draft model"  # of either
SERVER = "moa-server, plain, streamed over loopback"
PLAIN = "plain"
ALL = "all"

Round = Mapping[str, Any]  # as `ask_round` gives it, with its "category"
Milliseconds = Callable[[Sequence[Mapping[str, Any]]], float]  # a token, of answers


@dataclass(frozen=True, slots=True)
class MethodFigures:
    """How one method did on the questions of a category."""

    method: str
    category: str
    questions: int  # that it answered
    tokens_per_s: Spread  # after the first token
    first_ms: Spread
    speed_up: Spread | None  # of tokens a second after the first, over plain serving's of the same question
    whole_speed_up: Spread | None  # of the whole answer, the first token included
    acceptance: float | None  # tokens a forward after the first token; None: unknown
    nodes: float | None  # of such a forward
    other_texts: int  # answers that are not plain serving's; they are in no speed-up of an exact method
    common: float  # share of the tokens before the first other one
    cpu_ms: float  # of a processor, for each token, the prompt's reading included
    joules: float | None  # a token; None: not counted


def figures_of(rounds: Sequence[Round], own_text: Sequence[str]) -> list[MethodFigures]:
    """Figures of each method in each category and in all; rounds with short answers are left out.

    Args:
        own_text: methods whose text need not be plain serving's; their tokens are compared, not their texts.
    """
    long = [each for each in rounds if not each["short"]]
    categories = list(dict.fromkeys(each["category"] for each in long))
    methods = dict.fromkeys(name for each in long for name in each["answers"])
    groups = {ALL: long} | {
        category: [each for each in long if each["category"] == category] for category in categories
    }
    return [
        _figures(method, category, members, own_text=method in own_text)
        for category, members in groups.items()
        for method in methods
        if any(method in each["answers"] for each in members)
    ]


def _figures(method: str, category: str, rounds: Sequence[Round], *, own_text: bool) -> MethodFigures:
    members = [each for each in rounds if method in each["answers"]]
    answers = [answer for each in members for answer in each["answers"][method]]
    pairs = [each for each in members if own_text or all(answer["same"] for answer in each["answers"][method])]
    forwards = [answer for answer in answers if answer["forwards"]]
    steps = sum(answer["forwards"] for answer in forwards)
    tokens = sum(answer["tokens"] for answer in answers)
    return MethodFigures(
        method,
        category,
        len(members),
        Spread.of([1e3 / steady_ms([answer]) for answer in answers]),
        Spread.of([answer["first_ms"] for answer in answers]),
        _ratio(pairs, method, steady_ms),
        _ratio(pairs, method, _whole_ms),
        round(sum(answer["tokens"] - 1 for answer in forwards) / steps, 3) if steps else None,
        round(sum(answer["nodes"] for answer in forwards) / steps, 2) if steps else None,
        sum(not answer["same"] for answer in answers),
        round(sum(answer["common"] for answer in answers) / tokens, 4),
        round(1e3 * sum(answer["cpu_s"] for answer in answers) / tokens, 2),
        None if any(answer["joules"] is None for answer in answers) else sum(a["joules"] for a in answers) / tokens,
    )


def _ratio(rounds: Sequence[Round], method: str, ms: Milliseconds) -> Spread | None:
    """How many times as fast as plain serving, round by round; None: there is none to compare."""
    if not rounds:
        return None
    plain = [ms(each["answers"][PLAIN]) for each in rounds]
    return paired_ratio(plain, [ms(each["answers"][method]) for each in rounds])


def plain_over(rounds: Sequence[Round], method: str, base: str = PLAIN, *, whole: bool = False) -> Spread | None:
    """How many times as fast `base` is as a method; None: never both answered.

    Args:
        whole: over the whole answer, not after the first token.
    """
    ms = _whole_ms if whole else steady_ms
    both = [each for each in rounds if not each["short"] and {method, base} <= each["answers"].keys()]
    if not both:
        return None
    return paired_ratio([ms(each["answers"][method]) for each in both], [ms(each["answers"][base]) for each in both])


def steady_ms(answers: Sequence[Mapping[str, Any]]) -> float:
    """Milliseconds a token after the first, the mean of several answers; of one that came in one piece, of each."""
    return fmean(
        float(answer["steady_ms"]) / max(1, answer["tokens"] - 1) or float(answer["first_ms"]) / answer["tokens"]
        for answer in answers
    )


def _whole_ms(answers: Sequence[Mapping[str, Any]]) -> float:
    """Milliseconds a token, the first included."""
    return fmean(float(answer["first_ms"] + answer["steady_ms"]) / answer["tokens"] for answer in answers)

"""The suites, in the order of help, and what `moa-bench run` takes. What measures is loaded when it begins."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from moa_shared.errors import ConfigError

from moa_bench.harness.shapes import SHAPES, step_s
from moa_bench.suite import Suite
from moa_bench.suites.alone import SUITE as ALONE
from moa_bench.suites.capacity import SUITE as CAPACITY
from moa_bench.suites.cut import SUITE as CUT
from moa_bench.suites.cut.texts import SUITE as TEXTS
from moa_bench.suites.engine import SUITE as ENGINE
from moa_bench.suites.engine.invariance import SUITE as INVARIANCE
from moa_bench.suites.payoff import SUITE as PAYOFF
from moa_bench.suites.scale import SUITE as SCALE
from moa_bench.suites.simulate import SUITE as SIMULATE
from moa_bench.suites.single import SUITE as SINGLE
from moa_bench.suites.split import SUITE as SPLIT


@dataclass(frozen=True, slots=True)
class Chapter:
    """Measurements that answer one question together."""

    name: str
    parts: tuple[Suite[Any], ...]  # in the order in which they are run


SUITES: tuple[Suite[Any], ...] = (
    *(ALONE, CAPACITY, CUT, ENGINE, INVARIANCE, PAYOFF, SCALE, SIMULATE, SINGLE, SPLIT, TEXTS),
)
RETIRED = (
    "codecs",
    "hostile",
    "micro",
    "quality",
    "same-text",
    "soak",
)  # since version 0.2.0
# Less of some than their commands measure, so that all of a run takes two hours.
TWO_LINKS = replace(SPLIT, full=replace(SPLIT.full, links=("5G", "4G")))
AT_ACCEPTANCE = replace(CAPACITY, full=replace(CAPACITY.full, seconds=10.0, acceptances=(0.8,)))
FEW_TEXTS = replace(TEXTS, full=replace(TEXTS.full, answers=20))


def _sized(target: str) -> Iterator[Suite[Any]]:
    """The parts of a run that measure a target of another size than the default one: the slower, the less of it."""
    is_slow, is_slowest = (step_s(target) >= least for least in (0.05, 0.15))
    asked, tokens = (2, 24) if is_slowest else (2, 32) if is_slow else (3, 48)
    seconds = 12.0 if is_slowest else 8.0
    single = replace(SINGLE.full, asked=1 if is_slow else 2, answer_tokens=tokens, longest_prompt=120)
    split = replace(SPLIT.full, asked=asked, answer_tokens=48, longest_prompt=120, links=("5G", "4G"))
    payoff = replace(PAYOFF.full, rtts_ms=(0.0, 100.0), users=(1, 4), rounds=1, seconds=seconds, answer_tokens=tokens)
    capacity = replace(
        CAPACITY.full, users=(1, 4, 8), seconds=seconds, prompts=1, answer_tokens=tokens, prompt_tokens=(16, 48),
        kinds=("oracle",), acceptances=(0.8,), waits_for_all=True,
    )  # fmt: skip
    cut = replace(CUT.full, cuts=6, resets=2, kills=2, asked=1, answer_tokens=tokens)
    fixed = {"shape": target} if target in SHAPES else {"model": target}
    few: dict[str, Any] = {"asked": 1, "answer_tokens": 8, "acceptances": (0.8,)}
    parts: tuple[tuple[Suite[Any], Any, Any], ...] = (
        (SINGLE, single, replace(single, longest_prompt=60, shortest_answer=4, **few)),
        (SPLIT, split, replace(split, links=("4G",), **few)),
        (PAYOFF, payoff, replace(payoff, rtts_ms=(0.0,), users=(1,), seconds=4.0, answer_tokens=8)),
        (CAPACITY, capacity, replace(capacity, users=(1,), seconds=4.0, answer_tokens=8)),
        (CUT, cut, replace(cut, cuts=1, resets=0, kills=1, answer_tokens=8)),
    )
    for suite, full, quick in parts:
        yield replace(suite, name=f"{suite.name}-{target}", full=full, quick=quick, fixed=fixed)


CHAPTERS = (
    Chapter("single", (SINGLE,)),
    Chapter("network", (TWO_LINKS, PAYOFF)),
    Chapter("cut", (ALONE, CUT, FEW_TEXTS)),
    Chapter("capacity", (AT_ACCEPTANCE,)),
    Chapter("sizes", tuple(part for target in ("gemma3-270m", "1b", "3b", "8b") for part in _sized(target))),
    Chapter("scale", (SIMULATE, SCALE)),
)


def choose_parts(chapters: tuple[Chapter, ...], names: tuple[str, ...]) -> list[Suite[Any]]:
    """The suites of the named chapters in their order; `all` names every chapter, and a suite's own name itself."""
    there_are = [chapter.name for chapter in chapters]
    suites = [part.name for chapter in chapters for part in chapter.parts]
    for name in names:
        if name not in (*there_are, *suites, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.",
                hint=f"There are {', '.join(there_are)}, and all of them: all. Or name a part, such as {suites[-1]}.",
            )
    return [
        part for chapter in chapters for part in chapter.parts if {"all", chapter.name, part.name}.intersection(names)
    ]

"""The suites: how much each measures, what it takes, and what `moa-bench run` makes of them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import click
from moa_shared.errors import ConfigError
from moa_shared.protocol.levels import INT8

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import ACCEPTANCES, READ_SHARE, SHAPES, SLOW_STEP_S, step_s
from moa_bench.suite import Suite, SuiteInputs, option

CATEGORIES = 3  # of the questions in the package
PROMPT_TOKENS = 100  # of a question, at about which estimates are right
LLAMA_CPP = "llama.cpp"  # what results and tables call it
TEMPERATURE = "Of the answers; 0 is greedy, own what the model's files say."
CHANCE = click.FloatRange(0, 1)
FROM_1, FROM_2 = click.IntRange(1), click.IntRange(2)
Drafts = Literal["plain", "server", "oracle", "shipped", "auto", "everything"]
KINDS: tuple[Drafts, ...] = get_args(Drafts)


def _acceptances(usual: tuple[float, ...]) -> Any:
    words = "Of the oracle of a target without drafters (repeat)."
    return option(usual, words, "--acceptance", type=CHANCE)


@dataclass(frozen=True, slots=True)
class AloneEffort:
    """How much to measure."""

    questions: int = 2  # of each category
    answer_tokens: int = 128  # of an answer, at most
    longest_prompt: int = 512  # questions with more tokens are not asked
    alone_tokens: int = 96  # written after each cut
    task_tokens: int = 192  # of an answer whose result is checked; 0: none is
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


ALONE = Suite(
    "alone",
    "What a device writes without its server, by the share of the answer that it had; and what an API client has.",
    "moa_bench.suites.alone",
    AloneEffort(),
    AloneEffort(1, 16, 128, 8, 0),
    ("model", "level", "pin", "questions", "drafters"),
    lambda effort, step_s: 60.0 * CATEGORIES * effort.questions * effort.answer_tokens / 128,
)


@dataclass(frozen=True, slots=True)
class CapacityEffort:
    """What the users of one server ask, how they get their answers, and over which links.

    Args:
        apart_seconds: in which several users begin, one after the other; 0: at once. If answers are equally long too,
            users stay in step: all prompts are read together, and all answers end together.
        waits_for_all: they ask on until each has had a whole answer. A time that ends before says little.
    """

    users: tuple[int, ...] = option(
        (1, 4, 16, 64), "Only so many users (repeat, ascending).", type=click.IntRange(1, 256)
    )
    seconds: float = option(16.0, "For which they ask, in each way.", type=click.FloatRange(1))
    prompts: int = option(2, "Of each user, asked in turn.", type=FROM_1)
    answer_tokens: int = option(64, "Of each answer.", "--tokens", type=FROM_2)
    prompt_tokens: tuple[int, int] = option((50, 4000), "Of prompts.", metavar="SHORTEST LONGEST", type=FROM_1)
    think_seconds: float = option(
        0.0, "After each answer, on average.", "--think", metavar="SECONDS", type=click.FloatRange(0)
    )
    seed: int = option(0, "Of prompts, thinking, links and drafts.")
    apart_seconds: float = 0.0
    draft_ms: float = 5.0  # of a draft step of an oracle
    waits_for_all: bool = False
    kinds: tuple[Drafts, ...] = option(
        KINDS, "Only this way besides plain serving (repeat).", "--way", type=click.Choice(KINDS)
    )
    acceptances: tuple[float, ...] = option(
        (0.6, 0.8), "Of an oracle: only this one (repeat).", "--acceptance", type=CHANCE
    )
    links: tuple[str, ...] = option(
        (), "Users take these in turn (repeat).", "--link", metavar="NAME", shown="those of --rtt"
    )
    rtts_ms: tuple[float, ...] = option(
        (0.0,), "Round trip of all users' links; 0: loopback (repeat).", "--rtt", metavar="MS", type=click.FloatRange(0)
    )

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")
        shortest, longest = self.prompt_tokens
        if shortest > longest:
            raise ConfigError(
                f"Prompts of {shortest} to {longest} tokens do not exist.",
                hint="Give --prompt-tokens the shortest length, then the longest.",
            )


def _capacity_s(effort: CapacityEffort, step_s: float) -> float:
    ways = 1 + sum(len(effort.acceptances) if kind == "oracle" else kind != "plain" for kind in effort.kinds)
    middle = math.sqrt(effort.prompt_tokens[0] * effort.prompt_tokens[1])
    texts = max(effort.users) * effort.prompts * (middle * READ_SHARE + effort.answer_tokens / 2)
    asked_s = len(effort.users) * (effort.seconds + effort.apart_seconds + 1.0)
    return 15.0 + 100 * step_s + len(effort.rtts_ms) * (texts * step_s + ways * asked_s)


def _refuse_capacity(effort: CapacityEffort, inputs: SuiteInputs) -> None:
    if inputs.shape is not None and effort.kinds != KINDS and not {"plain", "oracle"}.issuperset(effort.kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")
    if effort.links and effort.rtts_ms != (0.0,):
        raise click.UsageError("--link and --rtt both name the users' links: give one of them.")


CAPACITY = Suite(
    "capacity",
    "Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without drafts, by round trip.",
    "moa_bench.suites.capacity.measure",
    CapacityEffort(),
    CapacityEffort((1, 4, 16), 7.0, 1, acceptances=(0.8,)),
    ("model", "level", "pin", "shape", "stored"),
    _capacity_s,
    _refuse_capacity,
)


@dataclass(frozen=True, slots=True)
class CutEffort:
    """How many incidents of each kind, and how long the answers are."""

    link: str = option("5G", "The link that is cut; not RTT 0.", metavar="NAME")
    cuts: int = option(100, "Cuts of the link.", type=click.IntRange(0))
    kills: int = option(25, "Kills of the server.", type=click.IntRange(0))
    resets: int = 20
    asked: int = option(20, "Questions, in turn.", type=FROM_1)
    answer_tokens: int = option(96, "Of each answer.", "--tokens", type=FROM_2)
    of_outage: int = 3  # answers that meet each recorded outage
    seed: int = 0


def _cut_s(effort: CutEffort, step_s: float) -> float:
    incidents, answer_s = effort.cuts + effort.kills + effort.resets, (60 + effort.answer_tokens) * step_s
    return 20.0 + 240 * step_s + effort.asked * answer_s + (1.6 + answer_s / 2) * incidents


def _refuse_cut(effort: CutEffort, inputs: SuiteInputs) -> None:
    if inputs.level != INT8 and inputs.questions != PACKAGED:
        raise click.UsageError(f"Only at {INT8} no cut changes a near tie: leave --questions or --level out.")


CUT = Suite(
    "cut",
    "Whether answers stay whole, and how long they stall, when the link is cut or the server killed.",
    "moa_bench.suites.cut.measure",
    CutEffort(),
    CutEffort(cuts=2, resets=1, kills=1, asked=1, answer_tokens=32, of_outage=1),
    ("model", "level", "pin", "questions", "traces", "shape", "stored"),
    _cut_s,
    _refuse_cut,
)


@dataclass(frozen=True, slots=True)
class EngineEffort:
    """How much to measure."""

    contexts: tuple[int, ...] = (128, 1000)  # tokens before the forward
    rows: tuple[int, ...] = (1, 5, 8, 16, 32, 62)  # of binary trees
    rounds: int = 9  # of each forward
    prompts: int = 3  # times that a prompt as long as the context is read


ENGINE = Suite(
    "engine",
    "The target's forward on the kernels, torch and llama.cpp, over rows and contexts; memory.",
    "moa_bench.suites.engine.measure",
    EngineEffort(),
    EngineEffort((32,), (1, 8), 1, 1),
    ("model", "pin", "llama_cpp", "shape", "stored"),
    # torch is not asked of large ones
    lambda effort, step_s: 60.0 + effort.rounds * (15.0 if step_s < SLOW_STEP_S else 330.0 * step_s),
)


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    """How much is simulated."""

    worlds: int = 5  # how many of the cases
    numbers: tuple[int, ...] = (1, 16, 64, 128, 384, 800)  # of users, besides those who fit
    seeds: int = 8  # of the links' delays, where measured answers are simulated


SCALE = Suite(
    "scale",
    "Users a GPU and cost for Llama-3-8B and 70B, in virtual time; each assumption has its source.",
    "moa_bench.suites.scale.measure",
    ScaleEffort(),
    ScaleEffort(1, (1, 64, 384), 1),
    (),
    lambda effort, step_s: 3 + 0.8 * effort.worlds * (1 + len(effort.numbers)) + 4.0 * effort.seeds,
)


@dataclass(frozen=True, slots=True)
class SingleEffort:
    """How much to measure.

    The drafts' sizes are those with which `moa-train evaluate` compares drafters; none was chosen by these figures.
    """

    asked: int = option(7, "Questions of each category.", type=FROM_1)
    answer_tokens: int = option(64, "Of an answer, at most; it ends where the target ends it.", "--tokens", type=FROM_2)
    shortest_answer: int = 16  # shorter ones are left out of the figures: their time is the first token's
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes
    copies: int = 10  # nodes of a chain that prompt look-up copies
    depth: int = 5  # of a tree, as what follows
    breadth: int = 6
    nodes: int = 24
    acceptances: tuple[float, ...] = _acceptances(ACCEPTANCES)
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


def _answer_s(effort: "SingleEffort | SplitEffort", step_s: float) -> float:
    return step_s * (READ_SHARE * min(PROMPT_TOKENS, effort.longest_prompt / 2) + effort.answer_tokens)


SINGLE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to llama.cpp and transformers.",
    "moa_bench.suites.single.measure",
    SingleEffort(),
    SingleEffort(1, 16, 4, 300, acceptances=(0.8,)),
    ("model", "level", "pin", "questions", "drafters", "llama_cpp", "shape", "stored"),
    # Plain answers that take as long as all of a question's: 22 with peers, 15 with oracles.
    lambda effort, step_s: 20.0 + 200 * step_s
    + CATEGORIES * effort.asked * (22 if step_s < SLOW_STEP_S else 15) * _answer_s(effort, step_s),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SplitEffort:
    """How much to measure."""

    asked: int = option(20, "Questions over each link, of all methods.", type=FROM_1)
    answer_tokens: int = option(64, "Of each answer, whatever the target chooses.", "--tokens", type=FROM_2)
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes of a chain that is sent whole
    links: tuple[str, ...] = option(("5G", "4G", "RTT 150 ms"), "Only this link (repeat).", "--link", metavar="NAME")
    acceptances: tuple[float, ...] = _acceptances(ACCEPTANCES)
    temperature: str = option("0", TEMPERATURE, metavar="T|own")


def _refuse_split(effort: SplitEffort, inputs: SuiteInputs) -> None:
    if not inputs.suffix and effort.acceptances != ACCEPTANCES:
        raise click.UsageError("--acceptance needs --shape, or another --model.")
    if inputs.shape is not None and inputs.drafters:
        raise click.UsageError("No drafter has learnt random weights: leave --drafter out with --shape.")


SPLIT = Suite(
    "split",
    "Client and server over links: all ways to draft with every drafter, next to plain streaming.",
    "moa_bench.suites.split.measure",
    SplitEffort(),
    SplitEffort(1, 12, chain=3, links=("RTT 0", "4G")),
    ("model", "level", "pin", "questions", "drafters", "traces", "shape", "stored"),
    # Eight answers to a question: plain streaming twice, the server's drafts, everything on, and two of each drafter.
    lambda effort, step_s: 15.0 + 200 * step_s
    + len(effort.links) * effort.asked * 8 * (0.7 + _answer_s(effort, step_s)),
    _refuse_split,
)  # fmt: skip
SUITES: tuple[Suite[Any], ...] = (ALONE, CAPACITY, CUT, ENGINE, SCALE, SINGLE, SPLIT)
MEASURE_WITH_IT = "Measure with that one."
RETIRED = dict.fromkeys(
    ("codecs", "hostile", "invariance", "micro", "quality", "same-text", "soak", "texts"), MEASURE_WITH_IT
)
RETIRED |= {
    "payoff": "`moa-bench capacity --rtt MS` serves users over a round trip.",
    "simulate": "`moa-bench scale` holds the simulation against what was measured.",
}
RETIRED_OPTIONS = {"engine": ("--kernels",)}
# Less of some than their commands measure, so that all of a run takes two hours.
TWO_LINKS = replace(SPLIT, full=replace(SPLIT.full, links=("5G", "4G")))
AT_ACCEPTANCE = replace(CAPACITY, full=replace(CAPACITY.full, seconds=10.0, acceptances=(0.8,)))
SHORT = replace(
    CAPACITY.full, users=(1, 4, 16), seconds=4.0, prompt_tokens=(40, 120), apart_seconds=2.0, waits_for_all=True,
    kinds=("server", "shipped", "everything"), rtts_ms=(0.0, 100.0, 300.0),
)  # fmt: skip
ROUND_TRIPS = replace(
    CAPACITY, name="capacity-rtt", full=SHORT, quick=replace(SHORT, users=(1, 2), answer_tokens=24, rtts_ms=(0.0, 50.0))
)


def _sized(target: str) -> Iterator[Suite[Any]]:
    """The parts of a run that measure a target of another size than the default one: the slower, the less of it."""
    is_slow, is_slowest = (step_s(target) >= least for least in (0.05, 0.15))
    asked, tokens = (2, 24) if is_slowest else (2, 32) if is_slow else (3, 48)
    single = replace(SINGLE.full, asked=1 if is_slow else 2, answer_tokens=tokens, longest_prompt=120)
    split = replace(SPLIT.full, asked=asked, answer_tokens=48, longest_prompt=120, links=("5G", "4G"))
    capacity = replace(
        SHORT, users=(1, 4, 8), seconds=12.0 if is_slowest else 8.0, prompts=1, answer_tokens=tokens,
        prompt_tokens=(16, 48), kinds=("oracle",), acceptances=(0.8,), rtts_ms=(0.0, 100.0),
    )  # fmt: skip
    cut = replace(CUT.full, cuts=6, resets=2, kills=2, asked=1, answer_tokens=tokens)
    fixed = {"shape": target} if target in SHAPES else {"model": target}
    few: dict[str, Any] = {"asked": 1, "answer_tokens": 8, "acceptances": (0.8,)}
    parts: tuple[tuple[Suite[Any], Any, Any], ...] = (
        (SINGLE, single, replace(single, longest_prompt=60, shortest_answer=4, **few)),
        (SPLIT, split, replace(split, links=("4G",), **few)),
        (CAPACITY, capacity, replace(capacity, users=(1,), seconds=4.0, answer_tokens=8, rtts_ms=(0.0,))),
        (CUT, cut, replace(cut, cuts=1, resets=0, kills=1, answer_tokens=8)),
    )
    for suite, full, quick in parts:
        yield replace(suite, name=f"{suite.name}-{target}", full=full, quick=quick, fixed=fixed)


# Measurements that answer one question together, in the order in which they are run.
CHAPTERS: dict[str, tuple[Suite[Any], ...]] = {
    "single": (SINGLE,),
    "network": (TWO_LINKS, ROUND_TRIPS),
    "cut": (ALONE, CUT),
    "capacity": (AT_ACCEPTANCE,),
    "sizes": tuple(part for target in ("gemma3-270m", "1b", "3b", "8b") for part in _sized(target)),
    "scale": (SCALE,),
}


def choose_parts(chapters: Mapping[str, tuple[Suite[Any], ...]], names: tuple[str, ...]) -> list[Suite[Any]]:
    """The suites of the named chapters in their order; `all` names every chapter, and a suite's own name itself."""
    suites = [part.name for parts in chapters.values() for part in parts]
    for name in names:
        if name not in (*chapters, *suites, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.",
                hint=f"There are {', '.join(chapters)}, and all of them: all. Or name a part, such as {suites[-1]}.",
            )
    return [
        part for chapter, parts in chapters.items() for part in parts if {"all", chapter, part.name}.intersection(names)
    ]

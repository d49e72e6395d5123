"""The suites: how much each measures, what it takes, and what `moa-bench run` makes of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import click
from moa_shared.defaults import INT8
from moa_shared.errors import ConfigError

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import ACCEPTANCES, SHAPES
from moa_bench.suite import Suite, SuiteInputs, option

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
)


@dataclass(frozen=True, slots=True)
class CapacityEffort:
    """What the users of one server ask, how they get their answers, and over which links."""

    users: tuple[int, ...] = option(
        (1, 4, 16, 64), "Only so many users (repeat, ascending).", type=click.IntRange(1, 256)
    )
    seconds: float = option(16.0, "For which they ask, in each way.", type=click.FloatRange(1))
    prompts: int = option(2, "Of each user, asked in turn.", type=FROM_1)
    answer_tokens: int = option(64, "Of each answer.", "--tokens", type=FROM_2)
    prompt_tokens: tuple[int, int] = option((50, 4000), "Of prompts.", metavar="SHORTEST LONGEST", type=FROM_1)
    seed: int = option(0, "Of prompts, links and drafts.")
    draft_ms: float = 5.0  # of a draft step of an oracle
    kinds: tuple[Drafts, ...] = option(
        KINDS, "Only this way besides plain serving (repeat).", "--way", type=click.Choice(KINDS)
    )
    acceptances: tuple[float, ...] = option(
        (0.6, 0.8), "Of an oracle: only this one (repeat).", "--acceptance", type=CHANCE
    )
    rtts_ms: tuple[float, ...] = option(
        (0.0,), "Round trip of all users' links; 0: loopback (repeat).", "--rtt", metavar="MS", type=click.FloatRange(0)
    )

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")
        shortest, longest = self.prompt_tokens
        if shortest > longest:
            hint = "Give --prompt-tokens the shortest length, then the longest."
            raise ConfigError(f"Prompts of {shortest} to {longest} tokens do not exist.", hint=hint)


def _refuse_capacity(effort: CapacityEffort, inputs: SuiteInputs) -> None:
    if inputs.shape is not None and effort.kinds != KINDS and not {"plain", "oracle"}.issuperset(effort.kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")


CAPACITY = Suite(
    "capacity",
    "Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without drafts, by round trip.",
    "moa_bench.suites.capacity.measure",
    CapacityEffort(),
    CapacityEffort((1, 4, 16), 7.0, 1, acceptances=(0.8,)),
    ("model", "level", "pin", "shape"),
    _refuse_capacity,
)


@dataclass(frozen=True, slots=True)
class CutEffort:
    link: str = option("5G", "The link that is cut; not RTT 0.", metavar="NAME")
    cuts: int = option(100, "Cuts of the link.", type=click.IntRange(0))
    kills: int = option(25, "Kills of the server.", type=click.IntRange(0))
    resets: int = 20
    asked: int = option(20, "Questions, in turn.", type=FROM_1)
    answer_tokens: int = option(96, "Of each answer.", "--tokens", type=FROM_2)
    seed: int = 0


def _refuse_cut(effort: CutEffort, inputs: SuiteInputs) -> None:
    if inputs.level != INT8 and inputs.questions != PACKAGED:
        raise click.UsageError(f"Only at {INT8} no cut changes a near tie: leave --questions or --level out.")


CUT = Suite(
    "cut",
    "Whether answers stay whole, and how long they stall, when the link is cut or the server killed.",
    "moa_bench.suites.cut",
    CutEffort(),
    CutEffort(cuts=2, resets=1, kills=1, asked=1, answer_tokens=32),
    ("model", "level", "pin", "questions", "shape"),
    _refuse_cut,
)


@dataclass(frozen=True, slots=True)
class EngineEffort:
    contexts: tuple[int, ...] = (128, 1000)  # tokens before the forward
    rows: tuple[int, ...] = (1, 5, 8, 16, 32, 62)  # of binary trees
    rounds: int = 9  # of each forward
    prompts: int = 3  # times that a prompt as long as the context is read


ENGINE = Suite(
    "engine",
    "The target's forward on the kernels, torch and llama.cpp, over rows and contexts; memory.",
    "moa_bench.suites.engine",
    EngineEffort(),
    EngineEffort((32,), (1, 8), 1, 1),
    ("model", "pin", "llama_cpp", "shape"),
)


@dataclass(frozen=True, slots=True)
class ScaleEffort:
    worlds: int = 5  # how many of the cases
    numbers: tuple[int, ...] = (1, 16, 64, 128, 384, 800)  # of users, besides those who fit


SCALE = Suite(
    "scale",
    "Users a GPU and cost for Llama-3-8B and 70B, in virtual time; each assumption has its source.",
    "moa_bench.suites.scale.measure",
    ScaleEffort(),
    ScaleEffort(1, (1, 64, 384)),
    (),
)


@dataclass(frozen=True, slots=True)
class SingleEffort:
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


SINGLE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to llama.cpp.",
    "moa_bench.suites.single.measure",
    SingleEffort(),
    SingleEffort(1, 16, 4, 300, acceptances=(0.8,)),
    ("model", "level", "pin", "questions", "drafters", "llama_cpp", "shape"),
)


@dataclass(frozen=True, slots=True)
class SplitEffort:
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
    ("model", "level", "pin", "questions", "drafters", "shape"),
    _refuse_split,
)
SUITES: tuple[Suite[Any], ...] = (ALONE, CAPACITY, CUT, ENGINE, SCALE, SINGLE, SPLIT)
MEASURE_WITH_IT = "Measure with that one."
RETIRED = dict.fromkeys(
    ("codecs", "hostile", "invariance", "micro", "quality", "same-text", "soak", "texts"), MEASURE_WITH_IT
)
RETIRED |= {
    "payoff": "`moa-bench capacity --rtt MS` serves users over a round trip.",
    "simulate": "A test holds the simulation against what was measured.",
}
RETIRED_OPTIONS: dict[str, tuple[str, ...]] = {
    "cut": ("--format", "--trace"),
    "run": ("--trace",),
    "single": ("--format",),
    "split": ("--format", "--trace"),
    "capacity": ("--format", "--link", "--think"),
    "engine": ("--format", "--kernels"),
}


def _sized(target: str) -> Iterator[Suite[Any]]:
    """The parts of a run that measure a target of another size than the default one: the slower, the less of it."""
    is_slow, is_slowest = target in ("3b", "8b"), target == "8b"
    asked, tokens = (2, 24) if is_slowest else (2, 32) if is_slow else (3, 48)
    single = replace(SINGLE.full, asked=1 if is_slow else 2, answer_tokens=tokens, longest_prompt=120)
    split = replace(SPLIT.full, asked=asked, answer_tokens=48, longest_prompt=120, links=("5G", "4G"))
    capacity = replace(
        CAPACITY.full, users=(1, 4, 8), seconds=12.0 if is_slowest else 8.0, prompts=1, answer_tokens=tokens,
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
    "network": (SPLIT,),
    "cut": (ALONE, CUT),
    "capacity": (CAPACITY,),
    "sizes": tuple(part for target in ("gemma3-270m", "1b", "3b", "8b") for part in _sized(target)),
    "scale": (SCALE,),
}


def choose_parts(chapters: Mapping[str, tuple[Suite[Any], ...]], names: tuple[str, ...]) -> list[Suite[Any]]:
    """The suites of the named chapters in their order; `all` names every chapter, and a suite's own name itself."""
    suites = [part.name for parts in chapters.values() for part in parts]
    for name in names:
        if name not in (*chapters, *suites, "all"):
            hint = f"There are {', '.join(chapters)}, and all of them: all. Or name a part, such as {suites[-1]}."
            raise ConfigError(f"There is no suite {name!r}.", hint=hint)
    return [
        part for chapter, parts in chapters.items() for part in parts if {"all", chapter, part.name}.intersection(names)
    ]

"""The suites: how much each measures, what it takes, and what `moa-bench run` makes of them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.config import SettingsBase, setting
from moa_shared.sampling.settings import INT8

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import ACCEPTANCES, SHAPES
from moa_bench.suite import MEASURE_WITH_IT, Suite, SuiteInputs

LLAMA_CPP = "llama.cpp"  # what results and tables call it
OF_ORACLE = "Of the oracle of a target without drafters (repeat)."
TEMPERATURE = "Of the answers; 0 is greedy, own what the model's files say."
Drafts = Literal["plain", "server", "oracle", "shipped", "auto", "everything"]
KINDS: tuple[Drafts, ...] = get_args(Drafts)


def _acceptances(usual: tuple[float, ...], text: str) -> tuple[float, ...]:
    return setting(usual, text, "P", flag="--acceptance", ge=0, le=1)


@dataclass(frozen=True, slots=True)
class AloneEffort(SettingsBase):
    questions: int = 2  # of each category
    answer_tokens: int = 128  # of an answer, at most
    longest_prompt: int = 512  # questions with more tokens are not asked
    alone_tokens: int = 96  # written after each cut
    task_tokens: int = 192  # of an answer whose result is checked; 0: none is
    temperature: str = setting("0", TEMPERATURE, "T|own")


ALONE = Suite(
    "alone",
    "What a device writes without its server, by the share of the answer that it had; and what an API client has.",
    "moa_bench.suites.alone",
    AloneEffort(),
    AloneEffort(1, 16, 128, 8, 0),
    ("model", "level", "pin", "questions", "drafter"),
)


@dataclass(frozen=True, slots=True)
class CapacityEffort(SettingsBase):
    """What the users of one server ask, how they get their answers, and over which links."""

    RETIRED: ClassVar = dict.fromkeys(("link", "think"), MEASURE_WITH_IT)

    users: tuple[int, ...] = setting((1, 4, 16, 64), "Only so many users (repeat, ascending).", "N", ge=1, le=256)
    seconds: float = setting(16.0, "For which they ask, in each way and round.", "S", ge=1)
    rounds: int = setting(1, "Of all ways, each the other way round than the one before; figures are means.", ge=1)
    prompts: int = setting(2, "Of each user, asked in turn.", ge=1)
    answer_tokens: int = setting(64, "Of each answer.", flag="--tokens", ge=2)
    prompt_tokens: tuple[int, int] = setting((50, 4000), "Tokens of prompts.", "SHORTEST LONGEST", ge=1)
    seed: int = setting(0, "Of prompts, links and drafts.")
    draft_ms: float = 5.0  # of a draft step of an oracle
    kinds: tuple[Drafts, ...] = setting(
        KINDS, "Only this way besides plain serving (repeat).", "|".join(KINDS), shown="all", flag="--way"
    )
    acceptances: tuple[float, ...] = _acceptances((0.6, 0.8), "Of an oracle: only this one (repeat).")
    rtts_ms: tuple[float, ...] = setting(
        (0.0,), "Round trip of all users' links; 0: loopback (repeat).", "MS", flag="--rtt", ge=0
    )

    def __post_init__(self) -> None:
        if list(self.users) != sorted(set(self.users)):
            raise ConfigError(f"The numbers of users are {self.users}.", hint="Give each once, the smallest first.")
        shortest, longest = self.prompt_tokens
        if shortest > longest:
            hint = "Give the shortest length first, then the longest."
            raise ConfigError(f"Prompts of {shortest} to {longest} tokens do not exist.", hint=hint)


def _refuse_capacity(effort: CapacityEffort, inputs: SuiteInputs) -> None:
    if inputs.shape is not None and effort.kinds != KINDS and not {"plain", "oracle"}.issuperset(effort.kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")


CAPACITY = Suite(
    "capacity",
    "Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without drafts, by round trip.",
    "moa_bench.suites.capacity.measure",
    CapacityEffort(),
    CapacityEffort((1, 4, 16), 7.0, prompts=1, acceptances=(0.8,)),
    ("model", "level", "pin", "shape"),
    _refuse_capacity,
)


@dataclass(frozen=True, slots=True)
class CutEffort(SettingsBase):
    link: str = setting("5G", "The link that is cut; not RTT 0.", "NAME")
    cuts: int = setting(100, "Cuts of the link.", ge=0)
    kills: int = setting(25, "Kills of the server.", ge=0)
    resets: int = 20
    asked: int = setting(20, "Questions, in turn.", ge=1)
    answer_tokens: int = setting(96, "Of each answer.", flag="--tokens", ge=2)
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
class EngineEffort(SettingsBase):
    RETIRED: ClassVar = {"kernels": MEASURE_WITH_IT}

    contexts: tuple[int, ...] = setting((128, 1000), "Tokens before the forward (repeat).", "N", flag="--context", ge=1)
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
class ScaleEffort(SettingsBase):
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
class SingleEffort(SettingsBase):
    asked: int = setting(7, "Questions of each category.", ge=1)
    answer_tokens: int = setting(64, "Of an answer, at most; it ends where the target ends it.", flag="--tokens", ge=2)
    shortest_answer: int = 16  # shorter ones are left out of the figures: their time is the first token's
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes
    copies: int = 10  # nodes of a chain that prompt look-up copies
    depth: int = 5  # of a tree, as what follows
    breadth: int = 6
    nodes: int = 24
    acceptances: tuple[float, ...] = _acceptances(ACCEPTANCES, OF_ORACLE)
    temperature: str = setting("0", TEMPERATURE, "T|own")


SINGLE = Suite(
    "single",
    "One device: plain steps, prompt look-up and all drafters, next to llama.cpp.",
    "moa_bench.suites.single.measure",
    SingleEffort(),
    SingleEffort(1, 16, 4, 300, acceptances=(0.8,)),
    ("model", "level", "pin", "questions", "drafter", "llama_cpp", "shape"),
)


@dataclass(frozen=True, slots=True)
class SplitEffort(SettingsBase):
    asked: int = setting(20, "Questions over each link, of all methods.", ge=1)
    answer_tokens: int = setting(64, "Of each answer, whatever the target chooses.", flag="--tokens", ge=2)
    longest_prompt: int = 600  # questions with more tokens are not asked
    chain: int = 5  # nodes of a chain that is sent whole
    links: tuple[str, ...] = setting(
        ("5G", "4G", "RTT 150 ms"), "Only this link (repeat).", "NAME", shown="5G, 4G, RTT 150 ms", flag="--link"
    )
    acceptances: tuple[float, ...] = _acceptances(ACCEPTANCES, OF_ORACLE)
    temperature: str = setting("0", TEMPERATURE, "T|own")


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
    ("model", "level", "pin", "questions", "drafter", "shape"),
    _refuse_split,
)
SUITES: tuple[Suite[Any], ...] = (ALONE, CAPACITY, CUT, ENGINE, SCALE, SINGLE, SPLIT)
RETIRED = dict.fromkeys(
    ("codecs", "hostile", "invariance", "micro", "quality", "same-text", "soak", "texts"), MEASURE_WITH_IT
)
RETIRED |= {
    "payoff": "`moa-bench capacity --rtt MS` serves users over a round trip.",
    "simulate": "A test holds the simulation against what was measured.",
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

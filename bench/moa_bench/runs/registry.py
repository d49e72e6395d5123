"""The suites, in the order of help, and what `moa-bench run` takes. What measures is loaded when it begins."""

from dataclasses import dataclass, replace
from typing import Any

from moa_shared.errors import ConfigError

from moa_bench.suite import Suite
from moa_bench.suites.alone import SUITE as ALONE
from moa_bench.suites.capacity import SUITE as CAPACITY
from moa_bench.suites.codecs import SUITE as CODECS
from moa_bench.suites.cut import SUITE as CUT
from moa_bench.suites.cut.texts import SUITE as TEXTS
from moa_bench.suites.engine import SUITE as ENGINE
from moa_bench.suites.engine.invariance import SUITE as INVARIANCE
from moa_bench.suites.engine.quality import SUITE as QUALITY
from moa_bench.suites.engine.same_text import SUITE as SAME_TEXT
from moa_bench.suites.hostile import SUITE as HOSTILE
from moa_bench.suites.hostile.soak import SUITE as SOAK
from moa_bench.suites.micro import SUITE as MICRO
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
    *(ALONE, CAPACITY, CODECS, CUT, ENGINE, HOSTILE, INVARIANCE, MICRO, PAYOFF, QUALITY, SAME_TEXT, SCALE, SIMULATE),
    *(SINGLE, SOAK, SPLIT, TEXTS),
)
LINKS = ("RTT 0", "5G", "4G", "RTT 150 ms")
AT_TWO_ACCEPTANCES = replace(CAPACITY, full=replace(CAPACITY.full, acceptances=(0.5, 0.8)))
OVER_LINKS = replace(
    CAPACITY,
    name="capacity-links",
    full=replace(CAPACITY.full, users=(4, 16), acceptances=(0.8,), links=LINKS, think_seconds=2.0),
    quick=replace(CAPACITY.effort(quick=True), links=LINKS, think_seconds=2.0),
)
CHAPTERS = (
    Chapter("single", (SINGLE,)),
    Chapter("network", (SPLIT, PAYOFF)),
    Chapter("cut", (ALONE, CUT, TEXTS)),
    Chapter("capacity", (AT_TWO_ACCEPTANCES, OVER_LINKS)),
    Chapter("scale", (SIMULATE, SCALE)),
    Chapter("micro", (MICRO,)),
    Chapter("hostile", (HOSTILE,)),
    Chapter("codecs", (CODECS,)),
    Chapter("memory", (SOAK,)),
)


def choose_parts(chapters: tuple[Chapter, ...], names: tuple[str, ...]) -> list[Suite[Any]]:
    """The suites of the named chapters in their order; `all` names every chapter."""
    there_are = [chapter.name for chapter in chapters]
    for name in names:
        if name not in (*there_are, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.", hint=f"There are {', '.join(there_are)}, and all of them: all."
            )
    return [part for chapter in chapters if "all" in names or chapter.name in names for part in chapter.parts]

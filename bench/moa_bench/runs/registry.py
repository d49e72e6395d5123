"""The suites, in the order of help, and what `moa-bench run` takes. What measures is loaded when it begins."""

from dataclasses import replace
from typing import Any

from moa_bench.runs.chapters import Chapter
from moa_bench.suite import Suite
from moa_bench.suites.alone.suite import SUITE as ALONE
from moa_bench.suites.capacity.suite import SUITE as CAPACITY
from moa_bench.suites.codecs.suite import SUITE as CODECS
from moa_bench.suites.cut.suite import SUITE as CUT
from moa_bench.suites.cut.texts.suite import SUITE as TEXTS
from moa_bench.suites.engine.invariance.suite import SUITE as INVARIANCE
from moa_bench.suites.engine.quality.suite import SUITE as QUALITY
from moa_bench.suites.engine.same_text.suite import SUITE as SAME_TEXT
from moa_bench.suites.engine.suite import SUITE as ENGINE
from moa_bench.suites.hostile.soak.suite import SUITE as SOAK
from moa_bench.suites.hostile.suite import SUITE as HOSTILE
from moa_bench.suites.micro.suite import SUITE as MICRO
from moa_bench.suites.payoff.suite import SUITE as PAYOFF
from moa_bench.suites.scale.suite import SUITE as SCALE
from moa_bench.suites.simulate.suite import SUITE as SIMULATE
from moa_bench.suites.single.suite import SUITE as SINGLE
from moa_bench.suites.split.suite import SUITE as SPLIT

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

"""The suites, in the order of help, and the chapters of the page of results. What measures is loaded when it begins."""

from __future__ import annotations

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
    Chapter(
        "single",
        "One device",
        "How much faster is a text with each way to draft, when target and drafter share a machine?",
        (SINGLE,),
    ),
    Chapter(
        "network",
        "Over a network",
        "What does one user gain over plain streaming, by link and by who drafts?",
        (SPLIT, PAYOFF),
    ),
    Chapter(
        "cut",
        "Without a link",
        "What does a user see when the link is cut or the server dies, and is the text the same afterwards?",
        (ALONE, CUT, TEXTS),
    ),
    Chapter(
        "capacity",
        "Users a server",
        "How many users does a server serve at a given speed, by who drafts?",
        (AT_TWO_ACCEPTANCES, OVER_LINKS),
    ),
    Chapter(
        "scale",
        "Beyond this machine",
        "What does the event simulation say of links and GPUs that are not here?",
        (SIMULATE, SCALE),
    ),
    Chapter("micro", "The parts", "What does each part cost by itself?", (MICRO,)),
    Chapter("hostile", "Hostile clients", "What does an honest client notice of attackers?", (HOSTILE,)),
    Chapter(
        "codecs",
        "The memory's codecs",
        "What does each rung of the memory codec cost on the wire and in acceptance?",
        (CODECS,),
    ),
    Chapter("memory", "The server's memory", "Does a server keep anything of sessions that are over?", (SOAK,)),
)

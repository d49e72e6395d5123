"""The suites that the harness knows, in the order of the page of results. Their code is loaded when one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moa_bench.report.report import ALONE, ENGINE, LINK, PARTS, PAYOFF, SCALE, SECURITY, SINGLE, SPLIT
from moa_bench.runs import existing
from moa_bench.runs.existing import PADDING, SHORT_LINKS
from moa_bench.runs.seam import seam_part
from moa_bench.runs.suites import Part, Request, Suite

SHORT = {"links": SHORT_LINKS}


def _part(
    name: str, page: str, minutes: float, start: Callable[[Request], None], quick: float = 1.0, **more: Any
) -> Part:
    """A measurement that has run before: about how many minutes it takes on two cores is known, not computed."""
    return Part(name, page, lambda is_quick: 60 * (quick if is_quick else minutes), start, **more)


SUITES = (
    Suite(
        "single",
        "One device",
        "How much faster is a text with each way to draft, when target and drafter share a machine?",
        (seam_part("single", "moa_bench.single.suite", SINGLE),),
    ),
    Suite(
        "network",
        "Over a network",
        "What does one user gain over plain streaming, by link and by who drafts?",
        (
            seam_part("split", "moa_bench.split.suite", SPLIT),
            seam_part("split-padded", "moa_bench.split.suite", SPLIT, effort=SHORT, padding=PADDING),
            seam_part("payoff", "moa_bench.payoff.suite", PAYOFF),
            seam_part("payoff-padded", "moa_bench.payoff.suite", PAYOFF, padding=PADDING),
            _part("network", LINK, 5, existing.network),
            _part("network-padded", LINK, 6, existing.padded_network),
        ),
    ),
    Suite(
        "cut",
        "Without a link",
        "What does a user see when the link is cut or the server dies, and is the text the same afterwards?",
        (
            seam_part("alone", "moa_bench.alone.suite", ALONE),
            _part("cut", LINK, 5, existing.cut),
            _part("texts", LINK, 6, existing.texts),
        ),
    ),
    Suite(
        "capacity",
        "Users a server",
        "How many users does a server serve at a given speed, by who drafts?",
        (
            _part("capacity", ENGINE, 8, existing.capacity, 2, pictures=("capacity",)),
            _part("capacity-links", ENGINE, 5, existing.linked_capacity, 2, pictures=("capacity-links",)),
            _part("capacity-padded", ENGINE, 10, existing.padded_capacity, 2, pictures=("capacity-padded",)),
        ),
    ),
    Suite(
        "scale",
        "Beyond this machine",
        "What does the event simulation say of links, crowds and GPUs that are not here?",
        (
            _part("simulate", PARTS, 2, existing.simulate, 0.1),
            _part("crowd", ENGINE, 4, existing.crowd, 0.2),
            seam_part("scale", "moa_bench.simulation.scale.suite", SCALE),
        ),
    ),
    Suite(
        "micro",
        "The parts",
        "What does each part cost by itself?",
        (
            _part("micro", PARTS, 2, existing.micro),
            _part("loop", PARTS, 2, existing.loop, 0.5),
            _part("start", PARTS, 1, existing.start, 0.2),
            _part("surfaces", PARTS, 2, existing.surfaces),
        ),
    ),
    Suite(
        "hostile",
        "Hostile clients",
        "What does an honest client notice of attackers, and what do activations reveal?",
        (_part("hostile", SECURITY, 3, existing.hostile), _part("reveal", SECURITY, 4, existing.reveal)),
    ),
    Suite(
        "codecs",
        "The memory's codecs",
        "What does each rung of the memory codec cost on the wire and in acceptance?",
        (_part("codecs", LINK, 1, existing.codecs, 0.5),),
    ),
    Suite(
        "memory",
        "The server's memory",
        "Does a server keep anything of sessions that are over?",
        (_part("soak", PARTS, 3, existing.soak),),
    ),
)

"""The suites that the harness knows, in the order of the page of results. Their code is loaded when one begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moa_bench.report.report import ALONE, ENGINE, LINK, PARTS, PAYOFF, SCALE, SECURITY, SINGLE, SPLIT
from moa_bench.runs import existing
from moa_bench.runs.seam import seam_part
from moa_bench.runs.suites import Part, Request, Suite


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
        (seam_part("single", "moa_bench.suites.single.suite", SINGLE),),
    ),
    Suite(
        "network",
        "Over a network",
        "What does one user gain over plain streaming, by link and by who drafts?",
        (
            seam_part("split", "moa_bench.suites.split.suite", SPLIT),
            seam_part("payoff", "moa_bench.suites.payoff.suite", PAYOFF),
        ),
    ),
    Suite(
        "cut",
        "Without a link",
        "What does a user see when the link is cut or the server dies, and is the text the same afterwards?",
        (
            seam_part("alone", "moa_bench.suites.alone.suite", ALONE),
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
        ),
    ),
    Suite(
        "scale",
        "Beyond this machine",
        "What does the event simulation say of links and GPUs that are not here?",
        (
            _part("simulate", PARTS, 2, existing.simulate, 0.1),
            seam_part("scale", "moa_bench.suites.scale.suite", SCALE),
        ),
    ),
    Suite(
        "micro",
        "The parts",
        "What does each part cost by itself?",
        (_part("micro", PARTS, 2, existing.micro),),
    ),
    Suite(
        "hostile",
        "Hostile clients",
        "What does an honest client notice of attackers?",
        (_part("hostile", SECURITY, 3, existing.hostile),),
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

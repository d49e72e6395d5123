"""Tokens a second over plain streaming's, over the links, a line for each method."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture, title_of
from moa_bench.report.spread import Spread
from moa_bench.suites.split.figures import figures_of
from moa_bench.suites.split.names import AHEAD, ALL, CO_LOCATED, PLAIN, STREAMED, SYNCHRONOUS

MARKERS = {SYNCHRONOUS: "o", AHEAD: "s", STREAMED: "^"}  # a drafter is a colour, a way to use it a marker
OWN_LOOKS: Mapping[str, dict[str, Any]] = {
    CO_LOCATED: {"color": "black", "marker": "x"},
    ALL: {"color": "crimson", "marker": "D", "linewidth": 3},
}


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path, rounds, links = folder / f"{result['name']}.png", result["rounds"], result["links"]
    order = sorted(links, key=lambda name: (links[name]["recorded"], links[name]["rtt_ms"]))
    colors = dict(zip(result["drafters"], (f"C{place}" for place in count()), strict=False))
    with picture(path, title_of(result), (11, 5.5)) as (figure, (panel,)):
        for method in dict.fromkeys(name for each in rounds for name in each["answers"] if name != PLAIN):
            points = [
                (place, Spread.of(ratios).median)
                for place, link in enumerate(order)
                if (ratios := figures_of([each for each in rounds if each["link"] == link], method).over_plain)
            ]
            drafter, _, way = method.rpartition(": ")
            look = {"color": colors[drafter], "marker": MARKERS[way]} if way in MARKERS else OWN_LOOKS[method]
            places, medians = [place for place, _ in points], [median for _, median in points]
            panel.plot(places, medians, label=method, **look)
        panel.set_xticks(range(len(order)), [_named(link, links[link]) for link in order], fontsize=8)
        panel.axhline(1.0, color="grey", linewidth=1)
        panel.set(xlabel="link, round trip", ylabel="tokens a second, over plain streaming's")
        figure.legend(fontsize=8, loc="outside right upper")
    return [path]


def _named(link: str, facts: Mapping[str, Any]) -> str:
    if facts["recorded"]:
        return "recorded:\n" + link.partition(", ")[2]
    return f"{link}\n{facts['rtt_ms']:.0f} ms"

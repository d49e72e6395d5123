"""Tokens a second over plain streaming's, over the round trip, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.report.spread import Spread
from moa_bench.split.effort import LINKS
from moa_bench.split.methods import PLAIN
from moa_bench.split.tables import figures_of


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws medians into a PNG file of a folder.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(9, 5), layout="constrained")
    rounds = result["rounds"]
    links = sorted(dict.fromkeys(each["link"] for each in rounds), key=lambda name: LINKS[name].rtt_ms)
    for method in dict.fromkeys(name for each in rounds for name in each["answers"] if name != PLAIN):
        points = [
            (place, Spread.of(ratios).median)
            for place, link in enumerate(links)
            if (ratios := figures_of([each for each in rounds if each["link"] == link], method).over_plain)
        ]
        panel.plot([place for place, _ in points], [ratio for _, ratio in points], marker="o", label=method)
    panel.set_xticks(range(len(links)), [f"{link}\n{LINKS[link].rtt_ms:.0f} ms" for link in links])
    panel.axhline(1.0, color="grey", linewidth=1)
    panel.set(xlabel="link, round trip", ylabel="tokens a second, over plain streaming's")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
    figure.suptitle(f"{result['target']} on one core of {result['machine']['cpu']}", fontsize=10)
    return [save(figure, folder / f"{result['name']}.png")]

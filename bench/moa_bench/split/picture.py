"""Tokens a second over plain streaming's, over the round trip, a line for each method."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.report.spread import Spread
from moa_bench.split import closed_form
from moa_bench.split.figures import figures_of
from moa_bench.split.methods import PLAIN


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws medians into a PNG file of a folder.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(9, 5), layout="constrained")
    rounds, links = result["rounds"], result["links"]
    order = sorted(links, key=lambda name: (links[name]["recorded"], links[name]["rtt_ms"]))
    forms = [closed_form.over_plain(rounds, link, links) for link in order]
    for method in dict.fromkeys(name for each in rounds for name in each["answers"] if name != PLAIN):
        points = [
            (place, Spread.of(ratios).median)
            for place, link in enumerate(order)
            if (ratios := figures_of([each for each in rounds if each["link"] == link], method).over_plain)
        ]
        [line] = panel.plot([place for place, _ in points], [ratio for _, ratio in points], marker="o", label=method)
        formed = [(place, form[method]) for place, form in enumerate(forms) if method in form]
        panel.plot(
            [place for place, _ in formed], [ratio for _, ratio in formed], linestyle=":", color=line.get_color()
        )
    panel.set_xticks(range(len(order)), [_named(link, links[link]) for link in order])
    panel.axhline(1.0, color="grey", linewidth=1)
    panel.set(xlabel="link, round trip; dotted: closed form", ylabel="tokens a second, over plain streaming's")
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
    figure.suptitle(f"{result['target']} on one core of {result['machine']['cpu']}", fontsize=10)
    return [save(figure, folder / f"{result['name']}.png")]


def _named(link: str, facts: Mapping[str, Any]) -> str:
    name = link.replace(", ", ",\n")
    return name if facts["recorded"] else f"{name}\n{facts['rtt_ms']:.0f} ms"

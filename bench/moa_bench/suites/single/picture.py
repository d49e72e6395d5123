"""Speed-ups of all methods over plain serving as bars, what a user would run instead among them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.report.spread import Spread
from moa_bench.suites.single.figures import ALL, figures_of
from moa_bench.suites.single.names import PLAIN


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws medians, with bars from quartile to quartile, into a PNG file of a folder.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    bars = bars_of(result)
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(8, 1.2 + 0.3 * len(bars)), layout="constrained")
    for place, (name, ratio) in enumerate(bars.items()):
        spread = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
        panel.barh(place, ratio.median, xerr=spread, color="C1" if name in result["peers"] else "C0", capsize=3)
    panel.set_yticks(range(len(bars)), list(bars))
    panel.set_ylim(len(bars) - 0.5, -0.5)
    panel.axvline(1.0, color="grey", linewidth=1)
    panel.set(xlabel="tokens a second after the first, over plain serving's")
    panel.grid(alpha=0.3, axis="x")
    figure.suptitle(f"{result['target']} on one core of {result['machine']['cpu']}", fontsize=10)
    return [save(figure, folder / "single.png")]


def bars_of(result: Mapping[str, Any]) -> dict[str, Spread]:
    """The speed-up of each method over all questions."""
    figures = figures_of(result["rounds"], result["own_text"])
    return {
        each.method: each.speed_up
        for each in figures
        if each.category == ALL and each.method != PLAIN and each.speed_up is not None
    }

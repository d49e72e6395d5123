"""Speed-ups of all methods over plain serving as bars, what a user would run instead among them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture, title_of
from moa_bench.suites.single.figures import ALL, figures_of
from moa_bench.suites.single.names import PLAIN


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path = folder / "single.png"
    figures = figures_of(result["rounds"], result["own_text"])
    found = [each for each in figures if each.category == ALL and each.method != PLAIN]
    bars = {each.method: each.speed_up for each in found if each.speed_up is not None}
    with picture(path, title_of(result), (8, 1.2 + 0.3 * len(bars))) as (_, (panel,)):
        for place, (name, ratio) in enumerate(bars.items()):
            spread = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            panel.barh(place, ratio.median, xerr=spread, color="C1" if name in result["peers"] else "C0", capsize=3)
        panel.set_yticks(range(len(bars)), list(bars))
        panel.set_ylim(len(bars) - 0.5, -0.5)
        panel.axvline(1.0, color="grey", linewidth=1)
        panel.set(xlabel="tokens a second after the first, over plain serving's")
    return [path]

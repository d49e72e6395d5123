"""A forward's milliseconds over its rows, an engine a line, a context a panel."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture, title_of

TICKS = (10, 20, 50, 100, 200, 500, 1000)  # ms


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    if "forwards" not in result:
        return []
    path = folder / "engine-speed.png"
    contexts = list(dict.fromkeys(cost.context for cost in result["forwards"]))
    counts = sorted({cost.rows for cost in result["forwards"]})
    with picture(path, title_of(result), (5.2 * len(contexts), 4.8), len(contexts)) as (figure, panels):
        for panel, context in zip(panels, contexts, strict=True):
            costs = [cost for cost in result["forwards"] if cost.context == context]
            for number, engine in enumerate(dict.fromkeys(cost.engine for cost in costs)):
                points = [(cost.rows, cost.ms.median) for cost in costs if cost.engine == engine]
                style = "-" if engine.startswith("kernels") else "--"
                panel.plot(*zip(*points, strict=True), style, marker="o", color=f"C{number}", label=engine)
            limit = next(limit for limit in result["limits"] if limit.context == context)
            panel.axhline(limit.ms.median, color="grey", linewidth=1, label="reading a step's bytes")
            panel.set(title=f"after {context} tokens", xlabel="rows of the forward", xscale="log", yscale="log")
            panel.set_xticks(counts, [str(count) for count in counts])
            panel.minorticks_off()
            panel.sharey(panels[0])
        panels[0].set_ylabel("ms, one core")
        panels[0].set_yticks(TICKS, [str(tick) for tick in TICKS])
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return [path]

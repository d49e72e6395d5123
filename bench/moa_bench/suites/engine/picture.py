"""A forward's milliseconds over its rows, an engine a line, a context a panel."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import new_pyplot, save

TICKS = (10, 20, 50, 100, 200, 500, 1000)  # ms


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws into a PNG file of a folder; nothing where forwards were not what was measured.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    if "forwards" not in result:
        return []
    pyplot = new_pyplot()
    contexts = list(dict.fromkeys(cost.context for cost in result["forwards"]))
    counts = sorted({cost.rows for cost in result["forwards"]})
    figure, axes = pyplot.subplots(
        1, len(contexts), figsize=(5.2 * len(contexts), 4.8), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, context in zip(axes[0], contexts, strict=True):
        costs = [cost for cost in result["forwards"] if cost.context == context]
        for number, engine in enumerate(dict.fromkeys(cost.engine for cost in costs)):
            found = [cost for cost in costs if cost.engine == engine]
            is_ours = engine.startswith("kernels")
            panel.plot(
                [cost.rows for cost in found],
                [cost.ms.median for cost in found],
                marker="o",
                linestyle="-" if is_ours else "--",
                color=f"C{number}",
                label=engine,
            )
        limit = next(limit for limit in result["limits"] if limit.context == context)
        panel.axhline(limit.ms.median, color="grey", linewidth=1, label="reading a step's bytes")
        panel.set(title=f"after {context} tokens", xlabel="rows of the forward", xscale="log", yscale="log")
        panel.set_xticks(counts, [str(count) for count in counts])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    axes[0][0].set_ylabel("ms, one core")
    axes[0][0].set_yticks(TICKS, [str(tick) for tick in TICKS])
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    figure.suptitle(f"{result['target']} on {result['machine']['cpu']}", fontsize=10)
    return [save(figure, folder / "engine-speed.png")]

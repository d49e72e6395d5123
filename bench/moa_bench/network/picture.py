"""One user's speed as a ratio to plain streaming, over the round trip of the link, a line for each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from moa_bench.report.pictures import new_pyplot, save
from moa_bench.report.spread import Spread

Ratios = Sequence[tuple[float, Spread]]  # round trip in ms, ascending; ratio to plain streaming


def draw_ratios(lines: Mapping[str, Ratios], title: str, path: Path) -> Path:
    """Draws medians, with bars from quartile to quartile, into a PNG file, and gives it back.

    Args:
        lines: by the name of the way.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, ratios) in enumerate(lines.items()):
        panel.errorbar(
            [rtt_ms for rtt_ms, _ in ratios],
            [ratio.median for _, ratio in ratios],
            yerr=bars(ratios),
            marker="o",
            capsize=3,
            color=f"C{number}",
            label=name,
        )
    panel.axhline(1.0, color="grey", linewidth=1, label="plain streaming over the same link")
    panel.set(xlabel="round trip, ms", ylabel="tokens a second over plain streaming's")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(title, fontsize=10)
    return save(figure, path)


def bars(ratios: Ratios) -> tuple[list[float], list[float]]:
    """How far the quartiles are below and above the medians."""
    return [ratio.median - ratio.low for _, ratio in ratios], [ratio.high - ratio.median for _, ratio in ratios]

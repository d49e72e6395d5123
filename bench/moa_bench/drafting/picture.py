"""One user's speed as a ratio to plain streaming, over the round trip of the link, a line for each way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_bench.network.emulated import Link
from moa_bench.report.pictures import new_pyplot, save
from moa_bench.report.spread import Spread

if TYPE_CHECKING:
    from moa_bench.drafting.compared import Drafted

Ratios = Sequence[tuple[float, Spread]]  # round trip in ms, ascending; ratio to plain streaming


def draw(result: Mapping[str, Any], links: Sequence[Link], path: Path) -> Path:
    """Draws medians, with bars from quartile to quartile, into a PNG file, and gives it back.

    Args:
        links: that were measured.

    Raises:
        ConfigError: matplotlib is not there, or the file cannot be written.
    """
    pyplot = new_pyplot()
    figure, panel = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (way, ratios) in enumerate(ratios_of(result["rows"], links).items()):
        panel.errorbar(
            [rtt_ms for rtt_ms, _ in ratios],
            [ratio.median for _, ratio in ratios],
            yerr=bars(ratios),
            marker="o",
            capsize=3,
            color=f"C{number}",
            label=way,
        )
    panel.axhline(1.0, color="grey", linewidth=1, label="plain streaming over the same link")
    panel.set(xlabel="round trip, ms", ylabel="tokens a second over plain streaming's")
    panel.grid(alpha=0.3)
    figure.legend(*panel.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.suptitle(f"{result['target']} on {result['machine']['cpu']}, one user", fontsize=10)
    return save(figure, path)


def ratios_of(rows: Sequence[Drafted], links: Sequence[Link]) -> dict[str, list[tuple[float, Spread]]]:
    """The line of each way, without links over which its answers failed."""
    lines: dict[str, list[tuple[float, Spread]]] = {}
    for link in sorted(links, key=lambda link: link.delay_ms):
        for row in rows:
            if row.cell.link == link.name and row.cell.ratio is not None:
                lines.setdefault(row.cell.way, []).append((2 * link.delay_ms, row.cell.ratio))
    return lines


def bars(ratios: Ratios) -> tuple[list[float], list[float]]:
    """How far the quartiles are below and above the medians."""
    return [ratio.median - ratio.low for _, ratio in ratios], [ratio.high - ratio.median for _, ratio in ratios]

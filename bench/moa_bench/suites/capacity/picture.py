"""Users of one server, over their number, a line for each way: tokens a second in all and of one, and their gaps."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture, title_of
from moa_bench.suites.capacity.tables import by_way


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    path = folder / f"{result['name']}.png"
    ways = by_way(result["cells"])
    numbers = sorted({cell.users for cell in result["cells"]})
    with picture(path, title_of(result), (14, 5), 3) as (figure, panels):
        totals, speeds, gaps = panels
        for number, (way, cells) in enumerate(ways.items()):
            users = [cell.users for cell in cells]
            style = {"marker": "o", "color": f"C{number}", "label": way.name}
            totals.plot(users, [cell.met.tokens_per_s for cell in cells], **style)
            speeds.plot(users, [cell.met.median_tokens_per_s for cell in cells], **style)
            gaps.plot(users, [cell.met.gap_p95_ms for cell in cells], **style)
        totals.set(title="all users, prompts' time included", ylabel="tokens a second")
        speeds.set(title="the median user, once text comes", yscale="log")
        gaps.set(title="gaps between arrivals, 95th percentile", ylabel="ms", yscale="log")
        for panel in panels:
            panel.set(xlabel="users", xscale="log")
            panel.set_xticks(numbers, [str(users) for users in numbers])
            panel.xaxis.minorticks_off()
            panel.yaxis.set_major_formatter("{x:g}")
            panel.yaxis.set_minor_formatter("{x:g}")
            panel.tick_params(axis="y", which="minor", labelsize=7)
            panel.title.set_fontsize(10)
        figure.legend(*totals.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return [path]

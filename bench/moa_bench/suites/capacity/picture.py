"""Users of one server, over their number, a line for each way: tokens a second in all and of one, and their gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moa_bench.report.pictures import picture, title_of
from moa_bench.suites.capacity.tables import acceptance_of, by_way
from moa_bench.users import closed_form
from moa_bench.users.closed_form import ForwardTimes
from moa_bench.users.figures import UsersCell
from moa_bench.users.strategies import Strategy


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws into a PNG file of a folder."""
    path = folder / f"{result['name']}.png"
    ways, times = by_way(result["cells"])
    numbers = sorted({cell.users for cell in result["cells"]})
    with picture(path, title_of(result), (14, 5), 3) as (figure, panels):
        totals, speeds, gaps = panels
        for number, (way, cells) in enumerate(ways.items()):
            users, colour = [cell.users for cell in cells], f"C{number}"
            style = {"marker": "o", "color": colour, "label": way.name}
            totals.plot(users, [cell.met.tokens_per_s for cell in cells], **style)
            speeds.plot(users, [cell.met.median_tokens_per_s for cell in cells], **style)
            gaps.plot(users, [cell.met.gap_p95_ms for cell in cells], **style)
            if formed := form_tokens_per_s(way, cells, times):
                speeds.plot(users, formed, linestyle=":", linewidth=1, color=colour)
        totals.set(title="all users, prompts' time included", ylabel="tokens a second")
        speeds.set(title="the median user, once text comes; dotted: closed form", yscale="log")
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


def form_tokens_per_s(way: Strategy, cells: Sequence[UsersCell], times: ForwardTimes | None) -> list[float]:
    """What arithmetic says of each user; empty where it says nothing."""
    acceptance = acceptance_of(way)
    if times is None or acceptance is None:
        return []
    return [closed_form.tokens_per_s(times, cell.users, acceptance) for cell in cells]

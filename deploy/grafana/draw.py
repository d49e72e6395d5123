"""Draws the panels of moa.json from a Prometheus, for documents and where there is no Grafana.

python deploy/grafana/draw.py http://127.0.0.1:9090 dashboard.png --minutes 10 --rate-interval 30s
"""

import argparse
import json
import math
import re
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).with_name("moa.json")
POINTS = 150  # of a line
COLUMNS, CELL_INCHES = 24, 0.62  # Grafana's grid, and the width of a cell; one is 0.4 as high
INK, PALE, PAPER = "#24292f", "#6e7781", "#ffffff"
COLOURS = ("#2f6fb0", "#e07b39", "#3c9a5f", "#b8443f", "#7b5ea7", "#8c6d4f", "#c96aa6", "#6b7c85", "#b3a12f", "#3aa6b0")


def filled(expression: str, rate_interval: str, instance: str = ".+") -> str:
    """A query with Grafana's variables replaced."""
    return expression.replace("$__rate_interval", rate_interval).replace("$instance", instance)


def queries(panel: dict[str, Any], rate_interval: str) -> list[tuple[str, str]]:
    """Of a panel: each query, and the format of its legend."""
    return [(filled(each["expr"], rate_interval), each["legendFormat"]) for each in panel["targets"]]


def fetch(base: str, expression: str, start: float, end: float) -> list[dict[str, Any]]:
    """The series of a query over a time."""
    step = max(1.0, (end - start) / POINTS)
    parameters = urllib.parse.urlencode({"query": expression, "start": start, "end": end, "step": step})
    with urllib.request.urlopen(f"{base}/api/v1/query_range?{parameters}", timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return found


def points(series: dict[str, Any]) -> tuple[list[float], list[float]]:
    """Times and values; gaps stay gaps."""
    pairs = [(float(when), float(value)) for when, value in series["values"]]
    return [when for when, _ in pairs], [value if math.isfinite(value) else math.nan for _, value in pairs]


def legend(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form) or "all"


def shown(value: float, unit: str) -> str:
    """A value as Grafana writes it, roughly."""
    if not math.isfinite(value):
        return "none"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s":
        if abs(value) >= 2 * 86400:
            return f"{value / 86400:.3g} d"
        return f"{value:.3g} s" if abs(value) >= 1 or value == 0 else f"{1e3 * value:.3g} ms"
    suffix = {"bytes": "B", "Bps": "B/s", "tok/s": " tok/s", "reqps": "/s", "ops": "/s"}.get(unit, "")
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scale = 1e3 if prefix == "k" else size
            return f"{value / scale:.3g} {prefix}{suffix.strip()}"
    return f"{value:.3g}{suffix if suffix.startswith((' ', '/')) else ' ' + suffix if suffix else ''}"


def draw(base: str, out: Path, seconds: float, end: float, rate_interval: str) -> None:
    """Draws the dashboard as it was in the `seconds` before `end`."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    width, height = COLUMNS * CELL_INCHES, rows * 0.4 * CELL_INCHES * 1.45
    figure = plt.figure(figsize=(width, height), facecolor="#f3f4f6")
    start = end - seconds
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        left, right = grid["x"] / COLUMNS, (grid["x"] + grid["w"]) / COLUMNS
        top, bottom = 1 - grid["y"] / rows, 1 - (grid["y"] + grid["h"]) / rows
        gap_x, gap_y = 0.05 / width, 0.05 / height
        card = figure.add_axes((left + gap_x, bottom + gap_y, right - left - 2 * gap_x, top - bottom - 2 * gap_y))
        card.set(xticks=[], yticks=[], facecolor=PAPER)
        for side in card.spines.values():
            side.set_color("#d8dbe0")
        found = [
            (legend(form, series["metric"]), *points(series))
            for expression, form in queries(panel, rate_interval)
            for series in fetch(base, expression, start, end)
            if any(math.isfinite(float(value)) for _, value in series["values"])
        ]
        title_y = top - 0.24 / height
        figure.text(left + 0.14 / width, title_y, panel["title"], color=INK, fontsize=9, weight="bold")
        unit = panel["fieldConfig"]["defaults"]["unit"]
        if panel["type"] == "stat":
            _draw_stat(card, panel, found, unit)
            continue
        inner = (left + 0.72 / width, bottom + 0.82 / height, right - left - 0.95 / width, top - bottom - 1.2 / height)
        _draw_lines(figure.add_axes(inner), panel, found, unit, start, end)
    figure.savefig(out, dpi=100)


def _draw_stat(card: Any, panel: dict[str, Any], found: list[tuple[str, list[float], list[float]]], unit: str) -> None:
    value = found[0][2][-1] if found else math.nan
    text, colour = shown(value, unit), INK
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        text = mapping["options"].get(f"{value:g}", {}).get("text", text)
    names = {"green": COLOURS[2], "orange": COLOURS[1], "red": COLOURS[3]}
    for step in panel["fieldConfig"]["defaults"].get("thresholds", {}).get("steps", []):
        if step["value"] is None or value >= step["value"]:
            colour = names[step["color"]]
    card.text(0.5, 0.4, text, ha="center", va="center", fontsize=20, weight="bold", color=colour)


def _draw_lines(
    axes: Any, panel: dict[str, Any], found: list[tuple[str, list[float], list[float]]], unit: str, *span: float
) -> None:
    custom = panel["fieldConfig"]["defaults"]["custom"]
    start, end = span
    if custom.get("stacking") and found:
        times = sorted({when for _, own, _ in found for when in own})
        values = [dict(zip(own, numbers, strict=True)) for _, own, numbers in found]
        heights = [[_or_zero(each.get(when, 0.0)) for when in times] for each in values]
        axes.stackplot(
            [when - start for when in times], heights, labels=[name for name, _, _ in found], colors=COLOURS, alpha=0.75
        )
    else:
        for number, (name, times, numbers) in enumerate(found):
            colour = COLOURS[number % len(COLOURS)]
            axes.plot([when - start for when in times], numbers, label=name, color=colour, linewidth=1.4)
    if custom.get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
        if axes.get_ylim()[1] < 1e-6 or not found:
            axes.set_ylim(0, 1)
    axes.set_xlim(0, end - start)
    axes.yaxis.set_major_formatter(lambda value, _: shown(value, unit))
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value // 60)}:{int(value % 60):02d}")
    axes.xaxis.set_major_locator(_minutes(end - start))
    axes.grid(color="#eceef1", linewidth=0.8)
    axes.tick_params(labelsize=7, colors=PALE, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    if found:
        columns = 3 if len(found) > 4 else 2
        axes.legend(
            loc="upper left", bbox_to_anchor=(-0.1, -0.1), ncols=columns, fontsize=7, frameon=False, labelcolor=INK,
            handlelength=1.2, columnspacing=1.2, borderaxespad=0.0, labelspacing=0.3,
        )  # fmt: skip


def _minutes(seconds: float) -> Any:
    from matplotlib.ticker import MultipleLocator

    return MultipleLocator(max(30.0, 60.0 * round(seconds / 360)))


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("prometheus", help="its address, such as http://127.0.0.1:9090")
    parser.add_argument("out", type=Path, help="picture to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="how long before the end to begin")
    parser.add_argument("--end", type=float, default=time.time(), help="seconds since 1970; default: now")
    parser.add_argument("--rate-interval", default="1m", help="at least four scrapes")
    given = parser.parse_args()
    draw(given.prometheus.rstrip("/"), given.out, 60 * given.minutes, given.end, given.rate_interval)


if __name__ == "__main__":
    main()

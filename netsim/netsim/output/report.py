"""The report: one HTML file that needs nothing else, and on request the same plots as a PNG."""

from __future__ import annotations

import html
import io
import json
import re
from pathlib import Path
from typing import Any

from netsim.errors import ReportError
from netsim.output.run_data import RunData, read_run

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>netsim: {title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
td, th {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }}
th {{ font-weight: 600; }}
.warning {{ background: #fbe9e7; border-left: 4px solid #c0392b; padding: .5rem 1rem; }}
svg {{ max-width: 100%; height: auto; margin: .5rem 0 1.5rem; }}
pre {{ background: #f5f5f5; padding: 1rem; overflow: auto; font-size: 12px; }}
</style></head><body>
<h1>{title}</h1>{warnings}
<table>{facts}</table>
{plots}
<h2>Events</h2><table><tr><th>s</th><th>event</th><th></th></tr>{events}</table>
<details><summary>summary.json</summary><pre>{summary}</pre></details>
</body></html>
"""
_QUIET = {"request", "conditions", "open", "close"}  # too many for a table


def write_report(folder: Path, target: Path, png: Path | None = None) -> None:
    """Draws the run in `folder`; raises ReportError."""
    pyplot = _matplotlib()
    run = read_run(folder)
    try:
        target.write_text(_page(run, pyplot))
        if png is not None:
            _draw_png(run, pyplot, png)
    except OSError as error:
        raise ReportError(f"{error.filename} cannot be written: {error.strerror}.") from error


def _matplotlib() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        raise ReportError(
            "Plots need matplotlib, which is not installed.", hint="Install it: pip install 'moa[report]'."
        ) from None
    mpl.use("Agg")
    # Text stays text, and the same run gives the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "netsim", "axes.spines.top": False})
    mpl.rcParams.update({"axes.spines.right": False, "font.size": 9})
    from matplotlib import pyplot

    return pyplot


def _page(run: RunData, pyplot: Any) -> str:
    from netsim.output.plots import PLOTS

    summary = run.summary
    images = []
    for number, draw in enumerate(PLOTS):
        figure, axes = pyplot.subplots(figsize=(9.5, 3.2), layout="constrained")
        draw(axes, run)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None})
        pyplot.close(figure)
        svg = buffer.getvalue()
        # Identifiers are unique only within one drawing: prefix them, as all drawings share the page.
        svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>p{number}-", svg[svg.index("<svg") :])
        images.append(svg)
    trace = " from a trace" if summary["trace"] else ""
    return _PAGE.format(
        title=html.escape(f"{summary['profile']['name']}{trace} over {summary['backend']}"),
        warnings=_warnings(summary),
        facts="".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(v)}</td></tr>" for k, v in _facts(summary)),
        plots="\n".join(images),
        events="".join(_event_row(event) for event in run.events if event["kind"] not in _QUIET),
        summary=html.escape(json.dumps(summary, indent=2)),
    )


def _warnings(summary: dict[str, Any]) -> str:
    notes = []
    if summary["approximate"]:
        notes.append("Approximate: the proxy works on the stream and models TCP; the tun backend is the reference.")
    if summary["lateness"]["flagged"]:
        notes.append("Flagged: the machine was too busy, releases came late; do not trust timings of this run.")
    return "".join(f'<p class="warning">{note}</p>' for note in notes)


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    late = summary["lateness"]
    facts = [
        ("profile", summary["profile"]["description"]),
        ("seed", str(summary["seed"])),
        ("duration", f"{summary['duration_s']:.1f} s"),
        ("congestion control", summary["congestion_control"]),
        ("kernel", summary["kernel"]),
        ("lateness of releases", f"median {late['median_ms']:.3f} ms, 99 % {late['p99_ms']:.2f} ms"),
    ]
    for direction, moments in summary["effective_delay_ms"].items():
        counts = summary["directions"][direction]
        drops = ", ".join(f"{counts['dropped_' + name]} {name}" for name in ("loss", "queue", "outage"))
        facts.append(
            (
                direction,
                f"effective delay {moments['mean']:.2f} ± {moments['deviation']:.2f} ms; "
                f"{counts['packets']} packets, {counts['bytes'] / 1e6:.2f} MB; dropped: {drops}",
            )
        )
    return facts


def _event_row(event: dict[str, Any]) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("t_s", "kind"))
    return f"<tr><td>{event['t_s']:.3f}</td><td>{html.escape(event['kind'])}</td><td>{html.escape(rest)}</td></tr>"


def _heading(summary: dict[str, Any]) -> str:
    """What a picture that is shown by itself must say of its run."""
    trace = " from a trace" if summary["trace"] else ""
    where = f"{summary['profile']['name']}{trace} over {summary['backend']}"
    return f"{where}, seed {summary['seed']}, {summary['duration_s']:.1f} s"


def _draw_png(run: RunData, pyplot: Any, path: Path) -> None:
    from netsim.output.plots import PLOTS

    figure, axes = pyplot.subplots(len(PLOTS), figsize=(8.0, 2.3 * len(PLOTS)), layout="constrained")
    for draw, each in zip(PLOTS, axes, strict=True):
        draw(each, run)
    figure.suptitle(_heading(run.summary), fontsize=10)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)

"""The lines that a run ends with, on standard error so that a command's own output stays clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def print_closing(summary: dict[str, Any], out: Path | None) -> None:
    """What was carried and lost, how punctual it was, where the outputs are."""
    parts = []
    for direction, counts in summary["directions"].items():
        dropped = sum(value for name, value in counts.items() if name.startswith("dropped_"))
        parts.append(f"{direction} {counts['packets']} packets, {dropped} dropped")
    approximate = " (approximate: stream level)" if summary["approximate"] else ""
    click.echo(f"netsim: {'; '.join(parts)}{approximate}", err=True)
    lateness = summary["lateness"]
    if lateness["flagged"]:
        click.echo(
            f"netsim: this machine was too busy: releases came {lateness['median_ms']:.2f} ms late in the median, "
            f"{lateness['p99_ms']:.1f} ms at 99 % (limits 0.3 and 5); do not trust timings of this run.",
            err=True,
        )
    if out is not None:
        click.echo(f"netsim: outputs in {out}; draw them with: netsim report {out}", err=True)

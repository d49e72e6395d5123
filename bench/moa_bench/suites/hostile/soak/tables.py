"""What a soak found, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import table


def render(result: Mapping[str, Any]) -> str:
    soak = result["soak"]
    ways = ", ".join(f"{count} by {way}" for way, count in soak.left.items())
    rows = [[count, f"{megabytes:.1f}"] for count, megabytes in soak.memory.items()]
    return f"Left: {ways}; {soak.refused} times there was no room at first. Growth: {soak.growth:+.2%}.\n\n" + table(
        ["sessions so far", "resident without files, MB"], rows
    )

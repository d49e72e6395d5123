"""What `moa-bench simulate` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import table


def render(result: Mapping[str, Any]) -> str:
    """A row for each link and acceptance."""
    cells, costs = result["cells"], result["costs"]
    head = ["link", "acceptance", "streamed", "bytes up a token", "drafted a token", "server waits", "rounds (length)"]
    rows = [
        [
            cell.link,
            f"{cell.acceptance:g}",
            f"{cell.streamed:.2f}",
            f"{cell.up_bytes:.0f}",
            f"{cell.drafted:.1f}",
            f"{cell.waiting:.2f}",
            f"{cell.rounds:.2f} ({cell.round_length})",
            f"{cell.best_wait_ms:g} ms: {cell.best_wait:.2f}",
        ]
        for cell in cells
    ]
    note = (
        f"Speed over plain streaming. A plain step {costs.plain_ms:g} ms, {costs.node_ms:g} more for each draft node, "
        f"a draft step {costs.draft_ms:g} ms; chains.\n"
    )
    return note + "\n" + table([*head, "best wait before a plain step"], rows)

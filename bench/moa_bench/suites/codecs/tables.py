"""What `moa-bench codecs` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import facts_line, table


def render(result: Mapping[str, Any]) -> str:
    """A row for each codec."""
    head = ["codec", "bytes a memory row", "down a token, prompt included", "tokens a verification"]
    rows = [
        [row.codec, row.row_bytes, f"{row.down_a_token:.0f}", f"{row.tokens_a_verification:.3f}"]
        for row in result["codecs"]
    ]
    note = (
        f"Trees of the drafter ({result['drafter']}) in synchronous rounds, "
        f"{result['codecs'][0].tokens} tokens of {result['target']} with each codec.\n"
    )
    return "\n".join([facts_line(result), note, table(head, rows)])

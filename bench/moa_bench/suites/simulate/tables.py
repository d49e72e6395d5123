"""What `moa-bench simulate` found, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, table_of

CELLS: tuple[Column, ...] = (
    ("link", "{0.link}"),
    ("acceptance", "{0.acceptance:g}"),
    ("streamed", "{0.streamed:.2f}"),
    ("bytes up a token", "{0.up_bytes:.0f}"),
    ("drafted a token", "{0.drafted:.1f}"),
    ("server waits", "{0.waiting:.2f}"),
    ("rounds (length)", "{0.rounds:.2f} ({0.round_length})"),
)


def render(result: Mapping[str, Any]) -> str:
    costs = result["costs"]
    note = (
        f"Speed over plain streaming. A plain step {costs.plain_ms:g} ms, {costs.node_ms:g} more for each draft node, "
        f"a draft step {costs.draft_ms:g} ms; chains.\n"
    )
    return note + "\n" + table_of(CELLS, result["cells"])

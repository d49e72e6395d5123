"""What `moa-bench codecs` found, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, facts_line, table_of

CODECS: tuple[Column, ...] = (
    ("codec", "{0.codec}"),
    ("bytes a memory row", "{0.row_bytes}"),
    ("down a token, prompt included", "{0.down_a_token:.0f}"),
    ("tokens a verification", "{0.tokens_a_verification:.3f}"),
)


def render(result: Mapping[str, Any]) -> str:
    note = (
        f"Trees of the drafter ({result['drafter']}) in synchronous rounds, "
        f"{result['codecs'][0].tokens} tokens of {result['target']} with each codec.\n"
    )
    return "\n".join([facts_line(result), note, table_of(CODECS, result["codecs"])])

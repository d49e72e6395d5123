"""The suite's results as Markdown."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, machine_line, table_of

VERIFICATION: tuple[Column, ...] = (
    ("fed at once", "{0.shape}"),
    ("tokens", "{0.tokens}"),
    ("bare forward, ms", "{0.bare_ms:1}"),
    ("rows encoded", "{0.encoded_rows}"),
    ("whole verification, ms", "{0.whole_ms:1}"),
    ("ratio", "{0.ratio:2}"),
)
DRAFTING: tuple[Column, ...] = (
    ("piece", "{0.what}"),
    ("ms: median (quartiles)", "{0.ms:2}"),
    ("of a target forward of one token", "{0.ratio:3}"),
)


def render(result: Mapping[str, Any]) -> str:
    verification = (
        f"### Verification over the bare forward\n\nAfter {result['prefix_tokens']} tokens, {result['level']} "
        f"({result['execution']}). Ratios are of interleaved pairs.\n"
    )
    drafting = f"### Drafting\n\nThe drafter: {result['drafter']}; weights in int8.\n"
    return "\n".join(
        [
            machine_line(result, ", one thread"),
            verification,
            table_of(VERIFICATION, result["verification"]),
            drafting,
            table_of(DRAFTING, result["drafting"]),
        ]
    )

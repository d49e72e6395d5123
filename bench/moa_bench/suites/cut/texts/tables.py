"""What `moa-bench texts` found, as Markdown. Pure."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, table_of

NAMES = ("level", "link", "drafter", "answers", "tokens", "standalone", "cuts", "resets")
TEXTS: tuple[Column, ...] = (
    *((name, f"{{0[{name}]}}") for name in NAMES),
    ("answers that differ", lambda result: len(result["differences"])),
)


def render(result: Mapping[str, Any]) -> str:
    return table_of(TEXTS, [result])

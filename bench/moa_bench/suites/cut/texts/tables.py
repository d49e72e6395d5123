"""What `moa-bench texts` found, as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def render(result: Mapping[str, Any]) -> str:
    """One row of what was found."""
    names = ("level", "link", "drafter", "answers", "tokens", "standalone", "cuts", "resets")
    head = [*names, "answers that differ"]
    row = [*(str(result[name]) for name in names), str(len(result["differences"]))]
    return f"| {' | '.join(head)} |\n|{' --- |' * len(head)}\n| {' | '.join(row)} |\n"

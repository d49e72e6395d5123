"""What `moa-bench same-text` found, as two sentences. Pure."""

from collections.abc import Mapping
from typing import Any


def render(result: Mapping[str, Any]) -> str:
    return f"{result['same_text']}\n"

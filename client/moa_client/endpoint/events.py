"""Server-sent events. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

EVENT_STREAM = "text/event-stream; charset=utf-8"
KEEP_ALIVE = b": waiting\n\n"  # a comment, which clients skip


def event(fields: Mapping[str, Any], name: str = "") -> bytes:
    """An event.

    Args:
        name: of its kind; empty: it has none.
    """
    heading = f"event: {name}\n" if name else ""
    return f"{heading}data: {json.dumps(fields, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()

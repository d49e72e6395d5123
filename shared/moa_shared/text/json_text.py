"""JSON of files and peers: whatever it holds, it is a value or a ValueError."""

from __future__ import annotations

import json
from typing import Any

from moa_shared.text.plain_text import is_text, marked_text


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; ValueError: no JSON, or nested so deeply that reading would exhaust the stack."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None


def parse_request(text: str | bytes) -> Any:
    """The value of a JSON text that others have sent, all of whose strings are text.

    Half a surrogate pair, which programs make that cut a text within a character, is marked: a history that has one
    would be refused for ever.
    """
    value = parse_json(text)
    try:
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise ValueError("its brackets are nested too deeply") from None
    return value if is_text(written) else parse_json(marked_text(written))

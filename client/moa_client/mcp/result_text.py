"""What a tool's result is in text: all that a model reads. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock


def result_text(result: CallToolResult) -> str:
    """The text of a result; what is no text is named in its place."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block_text, result.content))


def _block_text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource":
            text: str | None = getattr(block.resource, "text", None)
            return f"[{block.resource.uri}, which is not text]" if text is None else text
        case kind:
            return f"[{kind} content, which models here cannot read]"

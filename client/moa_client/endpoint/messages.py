"""The messages of a chat as OpenAI's requests have them, made into what a chat template takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

SYSTEM_ROLES = ("system", "developer")


class TextPart(BaseModel):
    """A part of a message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text"]
    text: str


def _as_parts(content: object) -> object:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise PydanticCustomError("content", "expected a text, or a list of parts of type text")
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise PydanticCustomError(
                "content",
                "part {number} is of type {kind}: models read text only",
                {"number": number, "kind": str(kind)},
            )
    return content


class Message(BaseModel):
    """One message."""

    model_config = ConfigDict(strict=True, extra="forbid")

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[list[TextPart], BeforeValidator(_as_parts)]
    name: str | None = None
    refusal: str = ""

    @property
    def text(self) -> str:
        """All its text."""
        return "".join(part.text for part in self.content) + self.refusal


def template_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """The messages as a chat template takes them.

    Templates know one system prompt, at the beginning: all messages of the system there become one.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role in SYSTEM_ROLES:
        leading += 1
    system = "\n\n".join(message.text for message in messages[:leading])
    rendered = [{"role": "system", "content": system}] if leading else []
    for message in messages[leading:]:
        is_system = message.role in SYSTEM_ROLES
        named = {"name": message.name} if message.name and not is_system else {}
        rendered.append({"role": "system" if is_system else message.role, "content": message.text, **named})
    return rendered

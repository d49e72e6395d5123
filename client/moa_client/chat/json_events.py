"""Events as lines of JSON for programs. Pure. docs/client.md describes the lines."""

from __future__ import annotations

import json
from typing import Any

from moa_shared.errors import MoaError

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    Committed,
    Corrected,
    Ended,
    Failed,
    NotKept,
    Provisional,
    Refused,
    Rewound,
    Settled,
    Titled,
)
from moa_client.conversation.updates import Update
from moa_client.surface.open_conversation import ConversationFacts
from moa_client.surface.update_codec import fields_of

SURFACES_ONLY = ("answer", "status", "added")  # a program gets all provisional text instead of what is added to it


def event_line(update: Update, text: AnswerText | None) -> str:
    """The line for one update; empty for what another line tells.

    Args:
        text: of the answer that it is about, after it; None: it is about none.
    """
    event = update.event
    if isinstance(event, Failed | NotKept | Rewound | Titled):
        return ""
    fields = {name: value for name, value in fields_of(update).items() if name not in SURFACES_ONLY}
    if text is not None and isinstance(event, Settled):
        fields["text"] = text.committed
    elif text is not None and isinstance(event, Committed | Provisional | Corrected | Ended):
        fields["provisional"] = text.provisional
    return _line(**fields)


def earlier_line(update: Update, earlier: AnswerText) -> str:
    """The same for an earlier answer: empty until it is decided."""
    return event_line(update, earlier) if isinstance(update.event, Settled | Refused) else ""


def error_line(error: MoaError) -> str:
    """The line that says why there is no (more) answer."""
    return _line("error", code=error.code, message=error.message, hint=error.hint)


def ready_line(facts: ConversationFacts) -> str:
    """The line that says that the program is ready for questions."""
    level = {"level": facts.level, "exact": facts.exact} if facts.level else None
    drafter = None
    if facts.drafter:
        drafter = {"name": facts.drafter, "reason": facts.drafter_reason, "alone": facts.alone or facts.drafter}
    return _line(
        "ready", target=facts.target, server=facts.server, online=facts.online, execution=level, drafter=drafter
    )


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})  # ASCII: any output can hold it, and no terminal acts on it

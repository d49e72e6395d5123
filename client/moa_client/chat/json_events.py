"""Events as lines of JSON for programs. Pure. docs/client.md describes the lines."""

from __future__ import annotations

import json
from typing import Any

from moa_shared.errors import MoaError

from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import Refused, Settled
from moa_client.conversation.updates import Failed, NotKept, Rewound, Titled, Update
from moa_client.surface.open_conversation import Facts
from moa_client.surface.update_codec import SURFACES_ONLY, fields_of


def event_line(update: Update, about: AnswerText | None = None) -> str:
    """The line for one update; empty for what another line tells.

    Args:
        about: the earlier answer that it is about; None: it is about the newest one, or about none.
    """
    event = update.event
    if isinstance(event, Failed | NotKept | Rewound | Titled):
        return ""
    if about is not None and not isinstance(event, Settled | Refused):
        return ""  # `Settled` will tell
    return _line(**{name: value for name, value in fields_of(update).items() if name not in SURFACES_ONLY})


def error_line(error: MoaError) -> str:
    """The line that says why there is no (more) answer."""
    return _line("error", code=error.code, message=error.message, hint=error.hint)


def ready_line(facts: Facts) -> str:
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

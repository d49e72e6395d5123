"""Events as lines of JSON for programs. Pure. docs/client.md describes the lines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import copy
from typing import Any

from moa_shared.errors import MoaError

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.surface.messages import ConversationFacts, fields_of
from moa_client.tools.thinking import AnswerSplit

# A program gets all provisional text instead of what is added to it.
SURFACES_ONLY = ("answer", "status", "added", "runs")


def event_line(update: Update, text: AnswerText | None, split: AnswerSplit | None = None) -> str:
    """The line for one update; empty for what another line tells.

    Args:
        text: of the answer that it is about, after it; None: it is about none.
        split: of that answer before it, which reads it; None: the model marks no reasoning.
    """
    event = update.event
    if isinstance(event, events.Failed | events.NotKept | events.Rewound | events.Titled):
        return ""
    fields = {name: value for name, value in fields_of(update).items() if name not in SURFACES_ONLY}
    if text is not None and isinstance(event, events.Settled):
        fields["text"] = text.committed
    elif text is not None and isinstance(
        event, events.Committed | events.Provisional | events.Corrected | events.Ended
    ):
        fields["provisional"], fields["likely"] = text.provisional, text.likely
    if text is not None and split is not None:
        fields |= _apart(fields, event, text, split)
    return _line(**fields)


def _apart(
    fields: Mapping[str, Any], event: events.SurfaceEvent, text: AnswerText, split: AnswerSplit
) -> dict[str, Any]:
    before = copy(split)
    split.read(text.committed, text.tokens)
    is_over = not (text.is_running or text.is_unsettled)
    reasoning, rest = split.ahead(text.provisional)
    if isinstance(event, events.Settled):
        before = AnswerSplit()
    apart: dict[str, Any] = {}
    if "text" in fields:
        apart["reasoning"] = split.reasoning[len(before.reasoning) :] + (reasoning if is_over else "")
        apart["text"] = split.text[len(before.text) :] + (rest if is_over else "")
    if "provisional" in fields:
        apart |= {"provisional_reasoning": "" if is_over else reasoning, "provisional": "" if is_over else rest}
        apart["likely"] = len(split.ahead(text.provisional[: text.likely])[1])
    return apart


def earlier_line(update: Update, earlier: AnswerText, split: AnswerSplit | None = None) -> str:
    """The same for an earlier answer: empty until it is decided."""
    return event_line(update, earlier, split) if isinstance(update.event, events.Settled | events.Refused) else ""


def error_line(error: MoaError) -> str:
    """The line that says why there is no (more) answer."""
    return _line("error", code=error.code, message=error.message, hint=error.hint)


def ready_line(facts: ConversationFacts) -> str:
    level = {"level": facts.level, "exact": facts.exact} if facts.level else None
    drafter = None
    if facts.drafter:
        drafter = {
            "name": facts.drafter,
            "reason": facts.drafter_reason,
            "standalone": facts.standalone or facts.drafter,
        }
    return _line(
        "ready", target=facts.target, server=facts.server, online=facts.online, execution=level, drafter=drafter
    )


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})  # ASCII: any output can hold it, and no terminal acts on it

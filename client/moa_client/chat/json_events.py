"""Events as lines of JSON for programs. Pure. docs/client.md describes the lines."""

from __future__ import annotations

import json
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError

from moa_client.conversation.answer_figures import Figures
from moa_client.conversation.events import (
    Committed,
    Corrected,
    DrafterChanged,
    Earlier,
    Event,
    ExecutionChanged,
    HeldBack,
    LinkChanged,
    Provisional,
    Refused,
    ServerChanged,
    Settled,
)
from moa_client.device.drafter_choice import Choice


def event_line(event: Event, piece: str, provisional: str, figures: Figures) -> str:
    """The line for one event; empty for what `Settled` will tell.

    Args:
        piece: what it adds to the committed text (`Settled`: the whole text of the answer it decides).
        provisional: all provisional text after it; replaces the previous one.
        figures: of the answer so far.
    """
    if isinstance(event, Earlier):
        return ""
    if isinstance(event, Committed):
        return _line("committed", text=piece, provisional=provisional, tokens=event.tokens, confirmed=event.confirmed)
    if isinstance(event, Provisional):
        chances = [round(chance, 3) for chance in event.chances]
        return _line("provisional", provisional=provisional, tokens=event.tokens, chances=chances)
    if isinstance(event, HeldBack):
        return _line("held_back", unread=event.unread)
    if isinstance(event, Corrected):
        return _line("corrected", provisional=provisional, dropped=event.dropped)
    if isinstance(event, LinkChanged):
        return _line("link", state=event.state.value, reason=event.reason)
    if isinstance(event, ExecutionChanged):
        return _line("execution", level=event.level, exact=event.exact)
    if isinstance(event, ServerChanged):
        return _line("server", what=event.what, message=event.message)
    if isinstance(event, DrafterChanged):
        return _line("drafter", name=event.name, reason=event.reason, alone=event.alone or event.name)
    if isinstance(event, Settled):
        finish = event.finish.name.lower()
        return _line(
            "settled",
            text=piece,
            tokens=event.tokens,
            changed=event.changed,
            outcome=event.outcome.value,
            written_alone=event.written,
            kept=event.kept,
            finish=finish,
        )
    if isinstance(event, Refused):
        return _line("refused", code=event.error.code, message=event.error.message, hint=event.error.hint)
    return _line(
        "ended",
        text=piece,
        provisional=provisional,
        finish=event.finish.name.lower(),
        verified=not event.provisional,
        figures=_figures(figures),
    )


def error_line(error: MoaError) -> str:
    """The line that says why there is no (more) answer."""
    return _line("error", code=error.code, message=error.message, hint=error.hint)


def ready_line(target: str, server: str, *, online: bool, execution: pb.Execution | None, choice: Choice | None) -> str:
    """The line that says that the program is ready for questions."""
    level = {"level": execution.level, "exact": execution.exact} if execution is not None else None
    drafter = _drafter(choice) if choice is not None else None
    return _line("ready", target=target, server=server, online=online, execution=level, drafter=drafter)


def _drafter(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, "reason": choice.reason, "alone": choice.alone or choice.name}


def _figures(figures: Figures) -> dict[str, Any]:
    return {
        "tokens": figures.tokens,
        "written_alone": figures.provisional,
        "kept": figures.kept,
        "seconds": round(figures.seconds, 4),
        "first_token_seconds": round(figures.first_token_seconds, 4),
        "steps": figures.verdicts,
        "drafted": figures.drafted,
        "accepted": figures.accepted,
        "server_drafted": figures.server_drafted,
        "server_accepted": figures.server_accepted,
        "cpu_seconds": round(figures.cpu_seconds, 4),
        "up_bytes": figures.up_bytes,
        "down_bytes": figures.down_bytes,
    }


def _line(event: str, **fields: Any) -> str:
    return json.dumps({"event": event, **fields})  # ASCII: any output can hold it, and no terminal acts on it

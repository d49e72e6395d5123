"""Updates as JSON objects, for surfaces in other processes and for programs. Pure.

docs/client.md describes the fields. `update_of(fields_of(update))` is the same update, but for what only the engine
knows (times of single forwards).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moa_shared.errors import MoaError, error_from_code
from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_figures import Figures, LinkStatus
from moa_client.conversation.answer_options import options_from
from moa_client.conversation.events import (
    Committed,
    Corrected,
    DrafterChanged,
    Ended,
    ExecutionChanged,
    HeldBack,
    LinkChanged,
    LinkState,
    Outcome,
    Provisional,
    Refused,
    ServerChanged,
    Settled,
)
from moa_client.conversation.updates import Asked, Continued, Failed, Happening, NotKept, Rewound, Titled, Update

Fields = dict[str, Any]
SURFACES_ONLY = ("answer", "waiting", "status")  # of no use to a program that asks one question


def fields_of(update: Update) -> Fields:
    """The JSON object of an update."""
    event = update.event
    fields = _event_fields(update)
    if isinstance(event, Committed | Provisional | Corrected | Ended):
        fields["waiting"] = update.waiting
    if update.answer:
        fields["answer"] = update.answer
    if update.status is not None:
        fields["status"] = status_fields(update.status)
    return fields


def _event_fields(update: Update) -> Fields:
    match update.event:
        case Committed() as event:
            return {
                "event": "committed",
                "text": update.piece,
                "provisional": update.provisional,
                "tokens": event.tokens,
                "confirmed": event.confirmed,
            }
        case Provisional() as event:
            chances = [round(chance, 3) for chance in event.chances]
            return {
                "event": "provisional",
                "provisional": update.provisional,
                "tokens": event.tokens,
                "chances": chances,
            }
        case HeldBack() as event:
            return {"event": "held_back", "unread": event.unread}
        case Corrected() as event:
            return {"event": "corrected", "provisional": update.provisional, "dropped": event.dropped}
        case LinkChanged() as event:
            fields = {"event": "link", "state": event.state.value, "reason": event.reason}
            return fields | ({"retry_seconds": round(event.wait_seconds, 1)} if event.wait_seconds else {})
        case ExecutionChanged() as event:
            return {"event": "execution", "level": event.level, "exact": event.exact}
        case ServerChanged() as event:
            return {"event": "server", "what": event.what, "message": event.message}
        case DrafterChanged() as event:
            return {
                "event": "drafter",
                "name": event.name,
                "reason": event.reason,
                "alone": event.alone or event.name,
            }
        case Settled() as event:
            return {
                "event": "settled",
                "text": update.text,
                "tokens": event.tokens,
                "changed": event.changed,
                "outcome": event.outcome.value,
                "written_alone": event.written,
                "kept": event.kept,
                "finish": event.finish.name.lower(),
            }
        case Refused() as event:
            return {"event": "refused", **_error_fields(event.error)}
        case Ended() as event:
            return {
                "event": "ended",
                "text": update.piece,
                "provisional": update.provisional,
                "finish": event.finish.name.lower(),
                "verified": not event.provisional,
                "figures": figures_fields(update.figures or Figures()),
            }
        case Asked() as event:
            return {"event": "asked", "question": event.question, "options": event.options.fields()}
        case Continued() as event:
            return {"event": "continued", "options": event.options.fields()}
        case Failed() as event:
            return {
                "event": "failed",
                "text": update.piece,
                "taken_back": event.taken_back,
                **_error_fields(event.error),
            }
        case NotKept() as event:
            return {"event": "not_kept", **_error_fields(event.error)}
        case Rewound() as event:
            return {"event": "rewound", "answers": event.answers}
        case Titled() as event:
            return {"event": "titled", "title": event.title}
        case other:
            raise TypeError(f"{type(other).__name__} is no event of an update")


def update_of(fields: Mapping[str, Any]) -> Update:
    """The update of a JSON object that `fields_of` has made.

    Raises:
        KeyError, ValueError, TypeError: it has not.
    """
    status = fields.get("status")
    name = fields["event"]
    figures = fields.get("figures")
    return Update(
        _EVENTS[name](fields),
        int(fields.get("answer", 0)),
        str(fields.get("text", "")) if name != "settled" else "",
        str(fields.get("provisional", "")),
        int(fields.get("waiting", 0)),
        str(fields["text"]) if name == "settled" else "",
        status_of(status) if status is not None else None,
        _figures_of(figures, fields["finish"]) if figures is not None else None,
    )


def _error_of(fields: Mapping[str, Any]) -> MoaError:
    return error_from_code(str(fields["code"]), str(fields["message"]), str(fields["hint"]))


def _finish_of(fields: Mapping[str, Any]) -> Finish:
    return Finish[str(fields["finish"]).upper()]


_EVENTS: dict[str, Callable[[Mapping[str, Any]], Happening]] = {
    "committed": lambda fields: Committed(tuple(fields["tokens"]), int(fields["confirmed"])),
    "provisional": lambda fields: Provisional(tuple(fields["tokens"]), tuple(fields["chances"])),
    "held_back": lambda fields: HeldBack(bool(fields["unread"])),
    "corrected": lambda fields: Corrected(int(fields["dropped"])),
    "link": lambda fields: LinkChanged(
        LinkState(fields["state"]), str(fields["reason"]), float(fields.get("retry_seconds", 0.0))
    ),
    "execution": lambda fields: ExecutionChanged(str(fields["level"]), bool(fields["exact"])),
    "server": lambda fields: ServerChanged(fields["what"], str(fields["message"])),
    "drafter": lambda fields: DrafterChanged(str(fields["name"]), str(fields["reason"]), str(fields["alone"])),
    "settled": lambda fields: Settled(
        tuple(fields["tokens"]),
        Outcome(fields["outcome"]),
        _finish_of(fields),
        int(fields["written_alone"]),
        int(fields["kept"]),
    ),
    "refused": lambda fields: Refused(_error_of(fields)),
    "ended": lambda fields: Ended(_finish_of(fields), provisional=not fields["verified"]),
    "asked": lambda fields: Asked(str(fields["question"]), options_from(fields["options"])),
    "continued": lambda fields: Continued(options_from(fields["options"])),
    "failed": lambda fields: Failed(_error_of(fields), bool(fields["taken_back"])),
    "not_kept": lambda fields: NotKept(_error_of(fields)),
    "rewound": lambda fields: Rewound(int(fields["answers"])),
    "titled": lambda fields: Titled(str(fields["title"])),
}


def status_fields(status: LinkStatus) -> Fields:
    """The JSON object of a status."""
    return {
        "state": status.state.value,
        "rtt_ms": None if status.rtt_ms is None else round(status.rtt_ms, 2),
        "tokens_per_s": round(status.tokens_per_s, 3),
        "by_device": round(status.by_device, 4),
        "by_server": round(status.by_server, 4),
        "up_bytes": status.up_bytes,
        "down_bytes": status.down_bytes,
        "written_alone": status.written_alone,
        "kept": status.kept,
        "holds_back": status.holds_back,
        "plain_tokens_per_s": round(status.plain_tokens_per_s, 3),
        "server": status.server,
    }


def status_of(fields: Mapping[str, Any]) -> LinkStatus:
    """The status of a JSON object that `status_fields` has made."""
    values = {name: value for name, value in fields.items() if name != "state"}
    return LinkStatus(LinkState(fields["state"]), **values)


def _error_fields(error: MoaError) -> Fields:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def figures_fields(figures: Figures | None) -> Fields | None:
    """The JSON object of figures; None: there are none."""
    if figures is None:
        return None
    return {
        "tokens": figures.tokens,
        "written_alone": figures.provisional,
        "undecided": figures.undecided,
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


def _figures_of(fields: Mapping[str, Any], finish: str) -> Figures:
    renamed = {"provisional": fields["written_alone"], "verdicts": fields["steps"]}
    kept = {name: value for name, value in fields.items() if name not in ("written_alone", "steps")}
    return Figures(**renamed, **kept, finish=Finish[finish.upper()])

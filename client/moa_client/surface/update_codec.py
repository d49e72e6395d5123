"""Updates as JSON objects, for surfaces in other processes and for programs. Pure.

docs/client.md and docs/device.md describe the fields. `update_of(fields_of(update))` is the same update, but for what
only the engine knows (times of single forwards).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from moa_shared.errors import MoaError, error_from_code
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.chances import TokenChances

from moa_client.conversation.answer_figures import Figures, LinkStatus
from moa_client.conversation.answer_options import options_from
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Asked,
    CallAnswered,
    CallDecided,
    CallsLeft,
    CallWanted,
    Committed,
    Continued,
    Corrected,
    DrafterChanged,
    Ended,
    ExecutionChanged,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    NotKept,
    Permission,
    Provisional,
    Refused,
    Rewound,
    ServerChanged,
    Settled,
    SurfaceEvent,
    Titled,
    ToolsChanged,
)
from moa_client.conversation.text_runs import BY_LETTER, TextRun

Fields = dict[str, Any]
E = TypeVar("E", bound=SurfaceEvent)


def fields_of(update: Update, *, with_runs: bool = False) -> Fields:
    """The JSON object of an update.

    Args:
        with_runs: also who wrote committed text, with its chances instead of `chances` and `lengths`.
    """
    kind = _BY_TYPE[type(update.event)]
    message: Fields = {"event": kind.name, **kind.encode(update.event)}
    if with_runs and isinstance(update.event, Committed):
        message = {name: value for name, value in message.items() if name not in ("chances", "lengths")}
        message["runs"] = runs_fields(update.event.runs)
    if update.figures is not None:
        message["figures"] = figures_fields(update.figures)
    if update.answer:
        message["answer"] = update.answer
    if update.status is not None:
        message["status"] = status_fields(update.status)
    return message


def update_of(fields: Mapping[str, Any]) -> Update:
    """The update of a JSON object that `fields_of` has made.

    Raises:
        KeyError, ValueError, TypeError: it has not.
    """
    status, figures = fields.get("status"), fields.get("figures")
    return Update(
        _BY_NAME[fields["event"]].decode(fields),
        int(fields.get("answer", 0)),
        status_of(status) if status is not None else None,
        _figures_of(figures, fields["finish"]) if figures is not None else None,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class _EventKind(Generic[E]):
    """How one kind of event is written as JSON, and read."""

    type: type[E]
    name: str
    encode: Callable[[E], Fields]
    decode: Callable[[Mapping[str, Any]], E]


def _plain(kind: type[E], name: str) -> _EventKind[E]:
    """A kind whose fields in JSON are those of its class."""

    def decode(fields: Mapping[str, Any]) -> E:
        values: Fields = {each.name: fields[each.name] for each in dataclasses.fields(kind)}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return kind(**values)

    return _EventKind(kind, name, dataclasses.asdict, decode)


def _error_fields(error: MoaError) -> Fields:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _error_of(fields: Mapping[str, Any]) -> MoaError:
    return error_from_code(str(fields["code"]), str(fields["message"]), str(fields["hint"]))


def _finish_of(fields: Mapping[str, Any]) -> Finish:
    return Finish[str(fields["finish"]).upper()]


def _committed_fields(event: Committed) -> Fields:
    fields: Fields = {"tokens": event.tokens, "confirmed": event.confirmed, "text": event.text}
    if event.chances:
        fields["chances"] = [_chances_fields(each) for each in event.chances]
        fields["lengths"] = event.lengths
    return fields


def _chances_fields(chances: TokenChances) -> Fields:
    likeliest = zip(chances.tokens, chances.chances, strict=True)
    return {
        "chosen": round(chances.chosen, 4),
        "likeliest": [[token, round(chance, 4)] for token, chance in likeliest],
    }


def _committed_of(fields: Mapping[str, Any]) -> Committed:
    return Committed(
        tuple(fields["tokens"]),
        int(fields["confirmed"]),
        str(fields["text"]),
        tuple(_chances_of(each) for each in fields.get("chances", ())),
        tuple(fields.get("lengths", ())),
        runs=tuple(map(_run_of, fields.get("runs", ()))),
    )


def _chances_of(fields: Mapping[str, Any]) -> TokenChances:
    likeliest = fields["likeliest"]
    return TokenChances(
        float(fields["chosen"]),
        tuple(int(token) for token, _ in likeliest),
        tuple(float(chance) for _, chance in likeliest),
    )


_KINDS: tuple[_EventKind[Any], ...] = (
    _EventKind(Committed, "committed", _committed_fields, _committed_of),
    _EventKind(
        Provisional,
        "provisional",
        lambda event: {
            "added": event.added,
            "tokens": event.tokens,
            "chances": [round(chance, 3) for chance in event.chances],
            "likely": event.likely,
        },
        lambda fields: Provisional(
            tuple(fields["tokens"]), tuple(fields["chances"]), str(fields["added"]), bool(fields["likely"])
        ),
    ),
    _plain(HeldBack, "held_back"),
    _plain(Corrected, "corrected"),
    _EventKind(
        Ended,
        "ended",
        lambda event: {
            "text": event.text,
            "added": event.added,
            "finish": event.finish.name.lower(),
            "verified": not event.provisional,
            **({"calls": event.calls} if event.calls else {}),
        },
        lambda fields: Ended(
            _finish_of(fields),
            provisional=not fields["verified"],
            text=str(fields["text"]),
            added=str(fields["added"]),
            calls=int(fields.get("calls", 0)),
        ),
    ),
    _EventKind(
        Settled,
        "settled",
        lambda event: {
            "text": event.text,
            "tokens": event.tokens,
            "changed": event.changed,
            "outcome": event.outcome.value,
            "written_alone": event.written,
            "kept": event.kept,
            "finish": event.finish.name.lower(),
        },
        lambda fields: Settled(
            tuple(fields["tokens"]),
            AnswerOutcome(fields["outcome"]),
            _finish_of(fields),
            int(fields["written_alone"]),
            int(fields["kept"]),
            str(fields["text"]),
        ),
    ),
    _EventKind(Refused, "refused", lambda event: _error_fields(event.error), lambda fields: Refused(_error_of(fields))),
    _EventKind(
        LinkChanged,
        "link",
        lambda event: {
            "state": event.state.value,
            "reason": event.reason,
            **({"retry_seconds": round(event.wait_seconds, 1)} if event.wait_seconds else {}),
        },
        lambda fields: LinkChanged(
            LinkState(fields["state"]), str(fields["reason"]), float(fields.get("retry_seconds", 0.0))
        ),
    ),
    _plain(ExecutionChanged, "execution"),
    _plain(ServerChanged, "server"),
    _EventKind(
        DrafterChanged,
        "drafter",
        lambda event: {"name": event.name, "reason": event.reason, "alone": event.alone or event.name},
        lambda fields: DrafterChanged(str(fields["name"]), str(fields["reason"]), str(fields["alone"])),
    ),
    _EventKind(
        Asked,
        "asked",
        lambda event: {"question": event.question, "options": event.options.fields()},
        lambda fields: Asked(str(fields["question"]), options_from(fields["options"])),
    ),
    _EventKind(
        Continued,
        "continued",
        lambda event: {"options": event.options.fields()},
        lambda fields: Continued(options_from(fields["options"])),
    ),
    _EventKind(
        Failed,
        "failed",
        lambda event: {"text": event.text, "taken_back": event.taken_back, **_error_fields(event.error)},
        lambda fields: Failed(_error_of(fields), bool(fields["taken_back"]), str(fields["text"])),
    ),
    _EventKind(
        NotKept, "not_kept", lambda event: _error_fields(event.error), lambda fields: NotKept(_error_of(fields))
    ),
    _plain(CallWanted, "call_wanted"),
    _EventKind(
        CallDecided,
        "call_decided",
        lambda event: {"call": event.call, "permission": event.permission.value},
        lambda fields: CallDecided(str(fields["call"]), Permission(fields["permission"])),
    ),
    _plain(CallAnswered, "call_answered"),
    _plain(CallsLeft, "calls_left"),
    _plain(ToolsChanged, "tools"),
    _plain(Rewound, "rewound"),
    _plain(Titled, "titled"),
)
_BY_TYPE = {kind.type: kind for kind in _KINDS}
_BY_NAME = {kind.name: kind for kind in _KINDS}


def runs_fields(runs: Iterable[TextRun]) -> list[list[Any]]:
    """Runs as JSON has them: the number of characters, the writer's letter if it is known, and the chance if it is."""
    return [
        [
            run.characters,
            run.writer.letter if run.writer is not None else "",
            *([round(run.chance, 3)] if run.chance is not None else []),
        ]
        for run in runs
    ]


def _run_of(fields: Sequence[Any]) -> TextRun:
    characters, letter, *chance = fields
    return TextRun(int(characters), BY_LETTER.get(letter), chance[0] if chance else None)


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
        "memory_bytes": status.memory_bytes,
        "written_alone": status.written_alone,
        "kept": status.kept,
        "holds_back": status.holds_back,
        "undecided": status.undecided,
        "server": status.server,
    }


def status_of(fields: Mapping[str, Any]) -> LinkStatus:
    """The status of a JSON object that `status_fields` has made."""
    values = {name: value for name, value in fields.items() if name != "state"}
    return LinkStatus(LinkState(fields["state"]), **values)


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
        "memory_bytes": figures.memory_bytes,
    }


def _figures_of(fields: Mapping[str, Any], finish: str) -> Figures:
    renamed = {"provisional": fields["written_alone"], "verdicts": fields["steps"]}
    kept = {name: value for name, value in fields.items() if name not in ("written_alone", "steps")}
    return Figures(**renamed, **kept, finish=Finish[finish.upper()])

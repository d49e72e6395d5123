"""The JSON messages between the daemon and its surfaces, and events for programs (docs/device.md, client.md). Pure.

One object a line on the socket, one a message on the page. One codec over dataclasses: a field of JSON is a field of
the class, but for the names and omissions in these tables. `update_of(fields_of(update))` is the same update, but for
what only the engine knows (times of single forwards).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

from moa_shared.errors import ConfigError, DataError, MoaError, error_from_code
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances
from moa_shared.text.plain_text import parse_json, parse_request

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import BY_LETTER, TextRun
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions, options_from
from moa_client.surface.open_conversation import ConversationFacts
from moa_client.tools.thinking import EFFORTS, marks_from

Fields = dict[str, Any]
T = TypeVar("T")
_EVENTS: Mapping[str, type[events.SurfaceEvent]] = {
    "committed": events.Committed,
    "provisional": events.Provisional,
    "held_back": events.HeldBack,
    "corrected": events.Corrected,
    "ended": events.Ended,
    "settled": events.Settled,
    "refused": events.Refused,
    "link": events.LinkChanged,
    "execution": events.ExecutionChanged,
    "server": events.ServerChanged,
    "drafter": events.DrafterChanged,
    "asked": events.Asked,
    "continued": events.Continued,
    "failed": events.Failed,
    "not_kept": events.NotKept,
    "call_wanted": events.CallWanted,
    "call_decided": events.CallDecided,
    "call_answered": events.CallAnswered,
    "calls_left": events.CallsLeft,
    "tools": events.ToolsChanged,
    "rewound": events.Rewound,
    "titled": events.Titled,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}
_RENAMED: Mapping[type, Mapping[str, str]] = {
    events.Settled: {"written": "written_standalone"},
    events.LinkChanged: {"wait_seconds": "retry_seconds"},
    Figures: {"provisional": "written_standalone", "verdicts": "steps"},
    AnswerText: {"is_running": "running", "is_unsettled": "unsettled"},
    ConversationFacts: {"identifier": "conversation"},
}
_LEFT_OUT: Mapping[type, Sequence[str]] = {
    events.Committed: ("writers", "runs"),
    events.Ended: ("provisional",),
    Figures: ("stale", "finish"),
    AnswerText: ("seen", "runs"),
}
_LEFT_OUT_IF_EMPTY: Mapping[type, Sequence[str]] = {
    events.Committed: ("chances", "lengths"),
    events.Ended: ("calls",),
    events.LinkChanged: ("wait_seconds",),
}
_DIGITS = {
    **dict.fromkeys(("by_device", "by_server", "seconds", "first_token_seconds", "cpu_seconds"), 4),
    **dict.fromkeys(("chances", "tokens_per_s"), 3),
    "rtt_ms": 2,
    "wait_seconds": 1,
}


def fields_of(update: Update, *, with_runs: bool = False) -> Fields:
    """The JSON object of an update.

    `with_runs`: also who wrote committed text, with its chances instead of `chances` and `lengths`.
    """
    event = update.event
    message: Fields = {"event": _NAMES[type(event)], **object_of(event)}
    match event:
        case events.Committed() if with_runs:
            message = {name: value for name, value in message.items() if name not in ("chances", "lengths")}
            message["runs"] = runs_fields(event.runs)
        case events.Ended():
            message["verified"] = not event.provisional
        case events.Settled():
            message["changed"] = event.changed
        case events.DrafterChanged():
            message["standalone"] = event.standalone or event.name
    if update.figures is not None:
        message["figures"] = object_of(update.figures)
    if update.answer:
        message["answer"] = update.answer
    if update.status is not None:
        message["status"] = object_of(update.status)
    return message


def update_of(fields: Mapping[str, Any]) -> Update:
    """The update of a JSON object that `fields_of` has made.

    Raises:
        KeyError, ValueError, TypeError: it has not.
    """
    status, figures, kind = fields.get("status"), fields.get("figures"), _EVENTS[fields["event"]]
    values = {**fields, "provisional": not fields["verified"]} if kind is events.Ended else fields
    return Update(
        made_of(kind, values),
        int(fields.get("answer", 0)),
        made_of(LinkStatus, status) if status is not None else None,
        made_of(Figures, {**figures, "finish": fields["finish"]}) if figures is not None else None,
    )


def object_of(value: Any) -> Fields:
    """The JSON object of an event, a status, figures, an answer's text or a conversation's facts."""
    kind = type(value)
    renamed, optional = _RENAMED.get(kind, {}), _LEFT_OUT_IF_EMPTY.get(kind, ())
    fields: Fields = {}
    for each in dataclasses.fields(value):
        part = getattr(value, each.name)
        if each.name in _LEFT_OUT.get(kind, ()) or (each.name in optional and not part):
            continue
        if isinstance(part, MoaError):
            fields |= {"code": part.code, "message": part.message, "hint": part.hint}
        else:
            fields[renamed.get(each.name, each.name)] = _plain(each.name, part)
    return fields


def made_of(kind: type[T], fields: Mapping[str, Any]) -> T:
    """What `object_of` has made an object of; what is missing has its default."""
    renamed, values = _RENAMED.get(kind, {}), {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        name, read = renamed.get(each.name, each.name), _READ.get(str(each.type).removeprefix("events."))
        if each.type == "MoaError":
            values[each.name] = error_of(fields)
        elif name in fields:
            values[each.name] = fields[name] if read is None else read(fields[name])
    return kind(**values)


def error_of(fields: Mapping[str, Any]) -> MoaError:
    return error_from_code(str(fields["code"]), str(fields["message"]), str(fields["hint"]))


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


def _plain(name: str, value: Any) -> Any:
    match value:
        case Finish():
            return value.name.lower()
        case Enum():
            return value.value
        case AnswerOptions():
            return value.fields()
        case TokenChances():
            likeliest = zip(value.tokens, value.chances, strict=True)
            return {
                "chosen": round(value.chosen, 4),
                "likeliest": [[token, round(chance, 4)] for token, chance in likeliest],
            }
        case tuple():
            return tuple(_plain(name, each) for each in value)
        case float() if name in _DIGITS:
            return round(value, _DIGITS[name])
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def _chances_of(fields: Mapping[str, Any]) -> TokenChances:
    tokens, chances = ([each[at] for each in fields["likeliest"]] for at in (0, 1))
    return TokenChances(float(fields["chosen"]), tuple(tokens), tuple(chances))


def _run_of(fields: Sequence[Any]) -> TextRun:
    characters, letter, *chance = fields
    return TextRun(int(characters), BY_LETTER.get(letter), chance[0] if chance else None)


_READ: Mapping[str, Callable[[Any], Any]] = {  # by the type of a field, as its class writes it
    "Finish": lambda name: Finish[name.upper()],
    "AnswerOutcome": events.AnswerOutcome,
    "LinkState": events.LinkState,
    "Permission": events.Permission,
    "AnswerOptions": options_from,
    "ReasoningMarks | None": marks_from,
    "tuple[int, ...]": tuple,
    "tuple[float, ...]": tuple,
    "tuple[TokenChances, ...]": lambda values: tuple(map(_chances_of, values)),
    "tuple[TextRun, ...]": lambda values: tuple(map(_run_of, values)),
    "tuple[tuple[str, str], ...]": lambda values: tuple(map(tuple, values)),
}


LEFT_OPEN = tuple(name for name, each in AnswerOptions.__dataclass_fields__.items() if each.default is None)
WHOLE = ("top_k", "seed", "max_tokens", "repeat_last_n")
MOST_QUESTION_BYTES = 1 << 20  # of a message from a surface
MOST_SHOWN = 60  # characters of a value in an error


def encode_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes | str) -> Fields:
    """The message of a line from a surface, all of whose strings are text."""
    return _object_of(parse_request, line)


def decode_line(line: bytes | str) -> Fields:
    """The message of a line from the daemon, which may name files by what is no text."""
    return _object_of(parse_json, line)


def _object_of(parse: Callable[[bytes | str], Any], line: bytes | str) -> Fields:
    try:
        fields = parse(line)
    except ValueError as error:
        raise DataError(f"The message cannot be read: {error}.", hint="docs/device.md has the messages.") from None
    if not isinstance(fields, dict):
        raise DataError("Expected a JSON object, got another value.", hint="docs/device.md has the messages.")
    return fields


def opened_fields(
    facts: ConversationFacts, status: LinkStatus, answers: Sequence[AnswerText], *, with_runs: bool = False
) -> Fields:
    return {
        "event": "opened",
        **object_of(facts),
        "status": object_of(status),
        "answers": [
            object_of(answer) | ({"runs": runs_fields(answer.runs)} if with_runs else {}) for answer in answers
        ],
    }


def options_of(fields: Mapping[str, Any]) -> AnswerOptions:
    """The options in an `ask` message."""
    for name, value in fields.items():
        if name not in AnswerOptions.__dataclass_fields__:
            raise ConfigError(f"There is no option {shortened(name)} of an answer.", hint="docs/device.md lists them.")
        if not _may_be(name, value):
            raise ConfigError(f"The option {name} cannot be {shortened(value)}.", hint="docs/device.md lists them.")
    return options_from(fields)


def _may_be(name: str, value: object) -> bool:
    """Whether an option can be of such a value's type; None leaves it open."""
    if value is None:
        return name in LEFT_OPEN
    if name == "loop_guard":
        return isinstance(value, bool)
    if name == "reasoning_effort":
        return value in EFFORTS
    if name == "thinking_budget":
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name == "stop":
        return isinstance(value, list) and all(isinstance(stop, str) for stop in value)
    if name == "chances":
        return isinstance(value, dict)
    if name == "logit_bias":
        return isinstance(value, dict) and all(_is_number(bias) for bias in value.values())
    return _is_number(value) and (name not in WHOLE or isinstance(value, int))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def error_fields(error: MoaError) -> Fields:
    return {"event": "error", "code": error.code, "message": error.message, "hint": error.hint}

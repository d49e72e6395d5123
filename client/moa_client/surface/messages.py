"""The JSON messages of conversations to surfaces, and events for programs (docs/device.md, client.md). Pure.

One codec over dataclasses: a field of JSON is a field of the class, but for the names and omissions in these tables.
`update_of(fields_of(update))` is the same update, but for what only the engine knows (times of single forwards).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar, get_args

from moa_shared.errors import ConfigError, DataError, MoaError, error_from_code
from moa_shared.plain_text import parse_request
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import TokenChances

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions, options_from
from moa_client.tools.thinking import EFFORTS, ReasoningMarks, marks_from

Fields = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConversationFacts:
    """What a surface can say about a conversation.

    Args:
        identifier: names it in the history; empty: it is not kept.
        title: empty: none yet.
        target: the model's name; `server`: its address.
        online: whether its server is there; `absent`: why not, one sentence.
        level: of execution, such as int8; empty: no server has reported it.
        exact: whether the text does not depend on what is verified together.
        drafter: drafts for the server; empty: none that reads its memory.
        drafter_reason: why this one; `standalone`: the one that writes without a server.
        companion: an ordinary model that writes in its place without a server; empty: there is none.
        offer: one that there could be, as `moa-client companion set` takes it; empty: none is known.
        system: the system prompt; None: the model's own.
        sampling: how answers are chosen where their options say nothing, by name.
        thinking: how answers mark reasoning; None: they have none that is known.
    """

    identifier: str = ""
    title: str = ""
    target: str = ""
    server: str = ""
    online: bool = False
    absent: str = ""
    level: str = ""
    exact: bool = True
    drafter: str = ""
    drafter_reason: str = ""
    standalone: str = ""
    companion: str = ""
    offer: str = ""
    system: str | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    thinking: ReasoningMarks | None = None


_NAMES = {  # of events: LinkChanged is "link", HeldBack "held_back"
    kind: re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__.removesuffix("Changed")).lower()
    for kind in get_args(events.SurfaceEvent)
}
_EVENTS = {name: kind for kind, name in _NAMES.items()}
_RENAMED: Mapping[type, Mapping[str, str]] = {
    events.Settled: {"written": "written_standalone"},
    events.LinkChanged: {"wait_seconds": "retry_seconds"},
    Figures: {"provisional": "written_standalone", "verdicts": "steps"},
    AnswerText: {"is_running": "running", "is_unsettled": "unsettled"},
    ConversationFacts: {"identifier": "conversation"},
}
_LEFT_OUT: Mapping[type, Sequence[str]] = {
    events.Committed: ("writers",),
    events.Ended: ("provisional",),
    Figures: ("stale", "finish"),
    AnswerText: ("seen",),
}
_LEFT_OUT_IF_EMPTY: Mapping[type, Sequence[str]] = {
    events.Committed: ("chances", "lengths", "runs"),
    events.Ended: ("calls",),
    events.LinkChanged: ("wait_seconds",),
}


def fields_of(update: Update) -> Fields:
    event = update.event
    message: Fields = {"event": _NAMES[type(event)], **object_of(event)}
    match event:
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
    """The update of a JSON object that `fields_of` has made; KeyError, ValueError or TypeError: it has not."""
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
            fields[renamed.get(each.name, each.name)] = _plain(part)
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


def _plain(value: Any) -> Any:
    match value:
        case Finish():
            return value.name.lower()
        case Enum():
            return value.value
        case AnswerOptions():
            return value.fields()
        case TokenChances(chosen, tokens, chances):
            return {"chosen": _plain(chosen), "likeliest": _plain(tuple(zip(tokens, chances, strict=True)))}
        case tuple():
            return tuple(map(_plain, value))
        case float():
            return round(value, 4)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value  # type: ignore[arg-type]


def _chances_of(fields: Mapping[str, Any]) -> TokenChances:
    tokens, chances = ([each[at] for each in fields["likeliest"]] for at in (0, 1))
    return TokenChances(float(fields["chosen"]), tuple(tokens), tuple(chances))


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
    "tuple[TextRun, ...]": lambda values: tuple(map(tuple, values)),
    "tuple[tuple[str, str], ...]": lambda values: tuple(map(tuple, values)),
}


MOST_QUESTION_BYTES = 1 << 20  # of a message from a surface
MOST_SHOWN = 60  # characters of a value in an error


def encode_line(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def decode_request(line: bytes | str) -> Fields:
    """The message of a line from a surface, all of whose strings are text."""
    try:
        fields = parse_request(line)
    except ValueError as error:
        raise DataError(f"The message cannot be read: {error}.", hint="docs/device.md has the messages.") from None
    if not isinstance(fields, dict):
        raise DataError("Expected a JSON object, got another value.", hint="docs/device.md has the messages.")
    return fields


def opened_fields(facts: ConversationFacts, status: LinkStatus, answers: Sequence[AnswerText]) -> Fields:
    answered = [object_of(answer) for answer in answers]
    return {"event": "opened", **object_of(facts), "status": object_of(status), "answers": answered}


OPTIONS: Mapping[str, tuple[type, ...]] = {  # that an `ask` message may have, and of which types
    **dict.fromkeys(("temperature", "top_p"), (int, float)),
    **dict.fromkeys(("top_k", "seed", "max_tokens"), (int,)),
    "loop_guard": (bool,),
    "reasoning_effort": (str,),
    "chances": (dict,),
}


def options_of(fields: Mapping[str, Any]) -> AnswerOptions:
    """The options in an `ask` message; null leaves one open."""
    asked = {name: value for name, value in fields.items() if value is not None}
    for name, value in asked.items():
        if name not in OPTIONS:
            raise ConfigError(f"There is no option {shortened(name)} of an answer.", hint="docs/device.md lists them.")
        if type(value) not in OPTIONS[name] or (name == "reasoning_effort" and value not in EFFORTS):
            raise ConfigError(f"The option {name} cannot be {shortened(value)}.", hint="docs/device.md lists them.")
    return options_from(asked)


def shortened(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def error_fields(error: MoaError) -> Fields:
    return {"event": "error", "code": error.code, "message": error.message, "hint": error.hint}

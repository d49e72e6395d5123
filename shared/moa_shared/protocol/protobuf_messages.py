"""Messages to protobuf and back, and drafts and verdicts on one stream, which leave out what the frame before implies.

Pure; the only place that knows both. State: where the frame before ended. Invariant: as gRPC keeps a stream's frames in
order, a reader that is given all frames that a writer made gives back the messages that the writer was given, but for
prefix hashes left out.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

from moa.v1 import moa_pb2 as pb

from moa_shared.errors import ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Ask, Draft, Finish, Memory, Plane, ThinMemory, Verdict
from moa_shared.sampling.settings import (
    REPEAT_LAST_N,
    Constraint,
    ConstraintKind,
    Sampling,
    TokenChances,
    WantedChances,
)
from moa_shared.tree import ROOT

MOST_HUNDREDTHS = (1 << 32) - 1  # of a millisecond: a forward of half a day

_OF_SAMPLING = ("temperature", "top_k", "top_p", "seed", "min_p", "presence_penalty", "frequency_penalty")
_OF_ASK = ("id", "base", "prefix_hash", "answer_start", "traceparent")
_OF_MEMORY = ("start", "count", "payload", "prefix_hash")
_OF_VERDICT = ("ask", "base", "prefix_hash", "accepted", "drafted", "server_drafted", "server_accepted", "shared")
_IMPLIED = 3  # of them, by the verdict before

Number = TypeVar("Number", bound=IntEnum)


def _same(source: object, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def settings_to_proto(settings: AnswerSettings) -> pb.Sampling:
    sampling, wanted, form = settings.sampling, settings.chances, settings.sampling.constraint
    return pb.Sampling(
        **_same(sampling, _OF_SAMPLING),
        max_tokens=settings.max_tokens,
        stop=settings.stop,
        ignore_end_of_text=settings.ignore_end_of_text,
        repeat_penalty=sampling.repeat_penalty if sampling.repeat_penalty != 1.0 else 0.0,
        repeat_last_n=sampling.repeat_last_n if sampling.repeat_last_n != REPEAT_LAST_N else None,
        logit_bias=dict(sampling.logit_bias),
        loop_guard=settings.loop_guard,
        constraint=pb.Constraint(kind=form.kind.value, text=form.text) if form else None,  # type: ignore[arg-type]
        chances=pb.WantedChances(likeliest=wanted.likeliest, processed=wanted.processed) if wanted else None,
    )


def settings_from_proto(message: pb.Sampling) -> AnswerSettings:
    sampling = Sampling(
        **(_same(message, _OF_SAMPLING) | {"top_p": message.top_p or 1.0}),
        repeat_penalty=message.repeat_penalty or 1.0,
        repeat_last_n=message.repeat_last_n if message.HasField("repeat_last_n") else REPEAT_LAST_N,
        logit_bias=tuple(message.logit_bias.items()),
        constraint=constraint_from_proto(message.constraint) if message.HasField("constraint") else None,
    )
    return AnswerSettings(
        sampling,
        message.max_tokens,
        tuple(message.stop),
        message.ignore_end_of_text,
        message.loop_guard,
        WantedChances(message.chances.likeliest, message.chances.processed) if message.HasField("chances") else None,
    )


def constraint_from_proto(message: pb.Constraint) -> Constraint:
    """Raises ConfigError for a text that is not of its kind, ProtocolError for an unknown kind."""
    kind = _known(ConstraintKind, message.kind, "a constraint of a kind that this version knows", "kind ")
    return Constraint(kind, message.text)


def ask_to_proto(ask: Ask) -> pb.Ask:
    provisional = draft_to_proto(ask.provisional) if ask.provisional is not None else None
    sampling = settings_to_proto(ask.settings)
    return pb.Ask(**_same(ask, _OF_ASK), tokens=ask.tokens, sampling=sampling, provisional=provisional)


def ask_from_proto(message: pb.Ask) -> Ask:
    if not message.id:
        raise ProtocolError("an Ask with an id of 1 or more", "none")
    provisional = draft_from_proto(message.provisional) if message.HasField("provisional") else None
    settings = settings_from_proto(message.sampling)
    return Ask(**_same(message, _OF_ASK), tokens=tuple(message.tokens), settings=settings, provisional=provisional)


def draft_to_proto(draft: Draft) -> pb.Draft:
    """The wire has how many nodes back a parent is, 0 for the root: small numbers, however long a draft goes on."""
    back = [node - parent if parent >= 0 else 0 for node, parent in enumerate(draft.parents, draft.first_node)]
    same = _same(draft, ("epoch", "base", "prefix_hash", "first_node"))
    return pb.Draft(**same, tokens=draft.tokens, parents=back)


def draft_from_proto(message: pb.Draft, continued: tuple[int, int, int] | None = None) -> Draft:
    """Parents are not checked. `continued`: epoch, base and first node, where the message leaves them out."""
    epoch, base, first = continued or (message.epoch, message.base, message.first_node)
    parents = (node - back if back else ROOT for node, back in enumerate(message.parents, first))
    return Draft(epoch, base, 0 if continued else message.prefix_hash, first, tuple(message.tokens), tuple(parents))


def chances_to_proto(chances: Sequence[TokenChances]) -> list[pb.TokenChances]:
    return [pb.TokenChances(chosen=each.chosen, tokens=each.tokens, chances=each.chances) for each in chances]


def chances_from_proto(tokens: Sequence[int], messages: Sequence[pb.TokenChances]) -> tuple[TokenChances, ...]:
    if messages and len(messages) != len(tokens):
        raise ProtocolError(f"chances of {len(tokens)} tokens", f"of {len(messages)}")
    for message in messages:
        if len(message.tokens) != len(message.chances):
            raise ProtocolError(f"chances of {len(message.tokens)} likeliest tokens", f"{len(message.chances)}")
        if not all(math.isfinite(each) for each in (message.chosen, *message.chances)):
            raise ProtocolError("chances that are numbers", "others")
    return tuple(TokenChances(each.chosen, tuple(each.tokens), tuple(each.chances)) for each in messages)


def memory_to_proto(memory: Memory) -> pb.Memory:
    kinds: dict[str, Any] = {"codec": memory.codec.value, "plane": memory.plane.value}
    return pb.Memory(**_same(memory, _OF_MEMORY), **kinds)


def memory_from_proto(message: pb.Memory) -> Memory:
    codec = _known(Codec, message.codec, "memory in a codec that this version knows", "codec ")
    plane = _known(Plane, message.plane, "memory of plane 0 or 1", "plane ")
    return Memory(**_same(message, _OF_MEMORY), codec=codec, plane=plane)


def thin_memory_to_proto(thin: ThinMemory) -> pb.ThinMemory:
    return pb.ThinMemory(states=thin.states, every=thin.every)


def thin_memory_from_proto(message: pb.ThinMemory) -> ThinMemory:
    if message.every == 0:
        raise ProtocolError("a memory row every 1 or more tokens", "every 0")
    return ThinMemory(message.states, message.every)


def _known(kind: type[Number], value: int, expected: str, what: str) -> Number:
    try:
        return kind(value)
    except ValueError:
        raise ProtocolError(expected, f"{what}{value}") from None


class DraftFrames:
    """The drafts of a stream, written or read; make another one after an Open or an Ask."""

    def __init__(self) -> None:
        self._end: tuple[int, int, int] | None = None  # epoch, base and next node

    def write_draft(self, draft: Draft) -> pb.Draft:
        message = draft_to_proto(draft)
        if not draft.prefix_hash and self._end == (draft.epoch, draft.base, draft.first_node):
            for implied in ("epoch", "base", "first_node"):
                message.ClearField(implied)
        self._end = draft.epoch, draft.base, draft.first_node + len(draft.tokens)
        return message

    def read_draft(self, message: pb.Draft) -> Draft:
        """Raises ProtocolError for a draft that continues none."""
        if not message.base and self._end is None:
            raise ProtocolError("a Draft that names its base, as the first one after an Open or an Ask", "base 0")
        draft = draft_from_proto(message, None if message.base else self._end)
        self._end = draft.epoch, draft.base, draft.first_node + len(draft.tokens)
        return draft


class VerdictFrames:
    """The verdicts of a stream, with the rows that leave with them, written or read."""

    def __init__(self) -> None:
        self._end: tuple[int, int] | None = None  # id of the question, and position of the next token

    def frame_of(self, verdict: Verdict, rows: Sequence[Memory] = ()) -> pb.ServerFrame:
        """A server makes one for each session and step, so what is 0 takes no time."""
        frame = pb.ServerFrame()
        message, continues = frame.verdict, self._end == (verdict.ask, verdict.base)
        for name in _OF_VERDICT[_IMPLIED:] if continues else _OF_VERDICT:
            if value := getattr(verdict, name):
                setattr(message, name, value)
        message.tokens.extend(verdict.tokens)
        message.step_hundredths = min(round(100 * verdict.step_ms), MOST_HUNDREDTHS)
        message.least_percent = round(100 * verdict.least_chance)
        message.finish = verdict.finish.value  # type: ignore[assignment]  # the stubs want the enum's own type
        message.stale_nodes = verdict.stale
        if verdict.chances:
            message.chances.extend(chances_to_proto(verdict.chances))
        self._end = verdict.ask, verdict.base + len(verdict.tokens)
        for memory in rows:
            row = memory_to_proto(memory)
            if (memory.start, memory.count) == _read_with(verdict):
                row.ClearField("start")
                row.ClearField("count")
            message.memory.append(row)
        return frame

    def messages_in(self, frame: pb.ServerFrame) -> Iterator[Verdict | Memory | pb.Beat]:
        """The messages of a server's frame, in order; none of a frame from a later version."""
        match frame.WhichOneof("frame"):
            case "verdict":
                yield (verdict := self.read_verdict(frame.verdict))
                for rows in frame.verdict.memory:
                    yield rows_from_proto(rows, verdict)
            case "memory":
                yield memory_from_proto(frame.memory)
            case "beat":
                yield frame.beat

    def read_verdict(self, message: pb.Verdict) -> Verdict:
        """Raises ProtocolError for a verdict that continues none, an unknown finish, or chances of other tokens."""
        ask, base = (message.ask, message.base) if message.base else self._end or (0, 0)
        if not base:
            raise ProtocolError("a verdict that names its base, as the first one of a stream", "base 0")
        verdict = Verdict(
            ask,
            base,
            message.prefix_hash if message.base else 0,
            tuple(message.tokens),
            _known(Finish, message.finish, "a verdict with a finish that this version knows", ""),
            message.accepted,
            message.drafted,
            message.stale_nodes,
            message.step_hundredths / 100,
            message.server_drafted,
            message.server_accepted,
            min(message.least_percent, 100) / 100,
            chances_from_proto(message.tokens, message.chances),
            message.shared,
        )
        self._end = verdict.ask, verdict.base + len(verdict.tokens)
        return verdict


def rows_from_proto(message: pb.Memory, verdict: Verdict) -> Memory:
    memory, (start, count) = memory_from_proto(message), _read_with(verdict)
    return memory if message.count else replace(memory, start=start, count=count)


def _read_with(verdict: Verdict) -> tuple[int, int]:
    """Start and number of the rows that a verdict's forward left behind: one for each token that it read and kept."""
    return verdict.base - 1, len(verdict.tokens)

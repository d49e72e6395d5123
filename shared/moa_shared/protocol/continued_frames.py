"""Drafts and verdicts on one stream, which leave out what the frame before them implies.

Pure. State: where the frame before ended. Invariant: as gRPC keeps a stream's frames in order, a reader that is given
all frames that a writer made gives back the messages that the writer was given, but for prefix hashes left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moa.v1 import moa_pb2 as pb

from moa_shared.errors import ProtocolError
from moa_shared.protocol.messages import Draft, Memory, Verdict
from moa_shared.protocol.protobuf_messages import (
    draft_from_proto,
    draft_to_proto,
    memory_from_proto,
    memory_to_proto,
    parents_from_steps,
    verdict_from_proto,
    verdict_to_proto,
)


class DraftWriter:
    """Drafts to the wire; make another one after an Open or an Ask."""

    def __init__(self) -> None:
        self._end: tuple[int, int, int] | None = None  # epoch, base and next node

    def write(self, draft: Draft) -> pb.Draft:
        message = draft_to_proto(draft)
        if not draft.prefix_hash and self._end == (draft.epoch, draft.base, draft.first_node):
            for implied in ("epoch", "base", "first_node"):
                message.ClearField(implied)
        self._end = draft.epoch, draft.base, draft.first_node + len(draft.tokens)
        return message


class DraftReader:
    """Drafts from the wire; make another one after an Open or an Ask."""

    def __init__(self) -> None:
        self._end: tuple[int, int, int] | None = None

    def read(self, message: pb.Draft) -> Draft:
        """Raises ProtocolError for a draft that continues none."""
        if message.base:
            draft = draft_from_proto(message)
        elif self._end is not None:
            epoch, base, first = self._end
            draft = Draft(epoch, base, 0, first, tuple(message.tokens), parents_from_steps(message.parents, first))
        else:
            raise ProtocolError("a Draft that names its base, as the first one after an Open or an Ask", "base 0")
        self._end = draft.epoch, draft.base, draft.first_node + len(draft.tokens)
        return draft


class VerdictWriter:
    """Verdicts, with the rows that leave with them, to the wire."""

    def __init__(self) -> None:
        self._end: tuple[int, int] | None = None  # id of the question, and position of the next token

    def write(self, verdict: Verdict, rows: Sequence[Memory] = ()) -> pb.Verdict:
        message = verdict_to_proto(verdict)
        if self._end == (verdict.ask, verdict.base):
            for implied in ("ask", "base", "prefix_hash"):
                message.ClearField(implied)
        self._end = verdict.ask, verdict.base + len(verdict.tokens)
        for memory in rows:
            row = memory_to_proto(memory)
            if (memory.start, memory.count) == _read_with(verdict):
                row.ClearField("start")
                row.ClearField("count")
            message.memory.append(row)
        return message


class VerdictReader:
    """Verdicts, and the rows that came with them, from the wire."""

    def __init__(self) -> None:
        self._end: tuple[int, int] | None = None

    def read(self, message: pb.Verdict) -> Verdict:
        """Raises ProtocolError for a verdict that continues none, or with a finish that this version does not know."""
        verdict = verdict_from_proto(message)
        if not message.base:
            if self._end is None:
                raise ProtocolError("a verdict that names its base, as the first one of a stream", "base 0")
            ask, base = self._end
            verdict = replace(verdict, ask=ask, base=base, prefix_hash=0)
        self._end = verdict.ask, verdict.base + len(verdict.tokens)
        return verdict


def rows_from_proto(message: pb.Memory, verdict: Verdict) -> Memory:
    """Rows that came with a verdict."""
    memory = memory_from_proto(message)
    if message.count:
        return memory
    start, count = _read_with(verdict)
    return replace(memory, start=start, count=count)


def _read_with(verdict: Verdict) -> tuple[int, int]:
    """Start and number of the rows that a verdict's forward left behind: one for each token that it read and kept."""
    return verdict.base - 1, len(verdict.tokens)

"""Frames of the Converse stream to and from bytes; the only place in the server that reads what clients wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ContextLengthError, ProtocolError, TreeError
from moa_shared.protocol.messages import Memory, Verdict

from moa_server.engine.stepper import CodedRows

Parsed = TypeVar("Parsed", bound=Message)


def parse(kind: type[Parsed], data: bytes, most_bytes: int) -> Parsed:
    """A message from the wire.

    Raises:
        ProtocolError: too long, or not such a message.
    """
    if len(data) > most_bytes:
        raise ProtocolError(
            f"a message of at most {most_bytes} bytes", f"{len(data)}", hint="Send less at once (Limits.frame_bytes)."
        )
    try:
        return kind.FromString(data)
    except DecodeError:
        raise ProtocolError(f"a {kind.DESCRIPTOR.name}", f"{len(data)} bytes that do not parse") from None


def check_order(kind: str | None, *, is_first: bool) -> None:
    """Raises ProtocolError unless the Open is the first frame of a stream, and no other one."""
    if kind is None:
        raise ProtocolError("a frame that this version knows", "an empty or unknown one")
    if is_first and kind != "open":
        raise ProtocolError("Open as the first frame", kind)
    if not is_first and kind == "open":
        raise ProtocolError("one Open a stream", "another Open")


def check_lengths(frame: pb.ClientFrame, most_tokens: int) -> int:
    """Checks how many tokens a frame holds, before anything looks at them; returns the number of its draft nodes.

    Raises:
        ContextLengthError: a text of more than `most_tokens`.
        TreeError: a draft of more nodes.
    """
    match frame.WhichOneof("frame"):
        case "draft":
            return _nodes_of(frame.draft, most_tokens)
        case "ask":
            return _check_ask(frame.ask, most_tokens)
        case "open":
            _check_text(frame.open.tokens, most_tokens)
            return _check_ask(frame.open.ask, most_tokens)
        case _:
            return 0


def _check_ask(ask: pb.Ask, most_tokens: int) -> int:
    _check_text(ask.tokens, most_tokens)
    return _nodes_of(ask.provisional, most_tokens)


def _check_text(tokens: Sequence[int], most_tokens: int) -> None:
    if len(tokens) > most_tokens:
        raise ContextLengthError(f"The frame has {len(tokens)} tokens, the context holds {most_tokens}.")


def _nodes_of(draft: pb.Draft, most_tokens: int) -> int:
    tokens = len(draft.tokens)
    nodes = max(tokens, len(draft.parents))
    if nodes > most_tokens:
        raise TreeError(
            f"The draft has {nodes} nodes, more than the {most_tokens} allowed.",
            hint="Send smaller drafts.",
        )
    return tokens


def merge_verdicts(earlier: Verdict, later: Verdict) -> Verdict | None:
    """A verdict and the one that continues it, as one; None if it continues another.

    It has the costs and the price of the newest step and counts what all steps verified.
    """
    continues = earlier.ask == later.ask and later.base == earlier.base + len(earlier.tokens)
    if earlier.finish or not continues:
        return None
    return replace(
        later,
        base=earlier.base,
        prefix_hash=earlier.prefix_hash,
        tokens=[*earlier.tokens, *later.tokens],
        accepted=earlier.accepted + later.accepted,
        drafted=earlier.drafted + later.drafted,
        stale=earlier.stale + later.stale,
        server_drafted=earlier.server_drafted + later.server_drafted,
        server_accepted=earlier.server_accepted + later.server_accepted,
        chances=(*earlier.chances, *later.chances) if bool(earlier.chances) is bool(later.chances) else (),
    )


def memory_of(rows: CodedRows, prefix_hash: int) -> Memory:
    """A chunk of memory as a message.

    Args:
        prefix_hash: of all tokens up to the last one that has a row in it, its low half.
    """
    chunk = rows.chunk
    return Memory(chunk.start, chunk.count, chunk.codec, rows.payload, chunk.plane, prefix_hash)

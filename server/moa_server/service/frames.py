"""Frames of the Converse stream to and from bytes; the only place in the server that reads what clients wrote."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ContextLengthError, ProtocolError, TreeError
from moa_shared.protocol.messages import SHORT_HASH, Memory, Verdict
from moa_shared.protocol.protobuf_messages import memory_to_proto, verdict_to_proto

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


def check_lengths(frame: pb.ClientFrame, most_tokens: int) -> None:
    """Checks how many tokens a frame holds, before anything looks at them.

    Raises:
        ContextLengthError: a text of more than `most_tokens`.
        TreeError: a draft of more nodes.
    """
    asks = [frame.ask, frame.open.ask]
    for text in (frame.open.tokens, *(ask.tokens for ask in asks)):
        if len(text) > most_tokens:
            raise ContextLengthError(f"The frame has {len(text)} tokens, the context holds {most_tokens}.")
    for draft in (frame.draft, *(ask.provisional for ask in asks)):
        nodes = max(len(draft.tokens), len(draft.parents))
        if nodes > most_tokens:
            raise TreeError(
                f"The draft has {nodes} nodes, more than the {most_tokens} allowed.",
                hint="Send smaller drafts.",
            )


def nodes_of(frame: pb.ClientFrame) -> int:
    """The number of draft nodes in a frame, wherever they are."""
    return len(frame.draft.tokens) + len(frame.ask.provisional.tokens) + len(frame.open.ask.provisional.tokens)


def verdict_frame(verdict: Verdict) -> pb.ServerFrame:
    return pb.ServerFrame(verdict=verdict_to_proto(verdict))


def merge_verdicts(earlier: pb.ServerFrame, later: pb.ServerFrame) -> bool:
    """Merges a verdict into the one that it continues; False, and no change, if it continues another.

    The merged verdict has the costs of the newest step and counts what all steps verified.
    """
    one, other = earlier.verdict, later.verdict
    both_verdicts = earlier.WhichOneof("frame") == later.WhichOneof("frame") == "verdict"
    continues = one.ask == other.ask and other.base == one.base + len(one.tokens)
    if not both_verdicts or one.finish or not continues:
        return False
    one.epoch, one.finish, one.step_ms = other.epoch, other.finish, other.step_ms
    one.tokens.extend(other.tokens)
    one.accepted += other.accepted
    one.drafted += other.drafted
    one.stale_nodes += other.stale_nodes
    one.server_drafted += other.server_drafted
    one.server_accepted += other.server_accepted
    return True


def memory_frame(rows: CodedRows, prefix_hash: int) -> pb.ServerFrame:
    """A chunk of memory.

    Args:
        prefix_hash: of all tokens up to the last one that has a row in it; half of it is sent, which is enough
            to tell a row of another branch.
    """
    chunk = rows.chunk
    memory = Memory(chunk.start, chunk.count, chunk.codec, rows.payload, chunk.plane, prefix_hash & SHORT_HASH)
    return pb.ServerFrame(memory=memory_to_proto(memory))

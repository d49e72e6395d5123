"""Frames of the Converse stream to and from bytes; the only place in the server that reads what clients wrote."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ProtocolError

from moa_server.slot import Verdict
from moa_server.stepper import CodedRows

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
        raise ProtocolError(f"a {kind.DESCRIPTOR.name}", f"{len(data)} bytes that are none") from None


def verdict_frame(verdict: Verdict) -> pb.ServerFrame:
    return pb.ServerFrame(
        verdict=pb.Verdict(
            ask=verdict.ask,
            epoch=verdict.epoch,
            base=verdict.base,
            prefix_hash=verdict.prefix_hash,
            tokens=verdict.tokens,
            accepted=verdict.accepted,
            finish=pb.Finish.Name(verdict.finish),
            drafted=verdict.drafted,
            stale_nodes=verdict.stale,
            step_ms=verdict.step_ms,
        )
    )


def memory_frame(rows: CodedRows, prefix_hash: int) -> pb.ServerFrame:
    """A chunk of memory.

    Args:
        prefix_hash: of all tokens up to the last one that has a row in it; half of it goes on the wire, which is enough
            to tell a row of another branch.
    """
    chunk = rows.chunk
    return pb.ServerFrame(
        memory=pb.Memory(
            start=chunk.start,
            count=chunk.count,
            codec=pb.Codec.Name(chunk.codec),
            payload=rows.payload,
            plane=pb.Plane.Name(chunk.plane),
            prefix_hash=prefix_hash & 0xFFFFFFFF,
        )
    )

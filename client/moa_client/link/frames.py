"""The frames of a Converse stream as messages: the engine's only way to the wire."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from moa.v1 import moa_pb2 as pb
from moa_shared.protocol import protobuf_messages as protobuf
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ack, Ask, Draft, Memory, ThinMemory, Verdict

from moa_client.link.connection import ServerConnection


@dataclass(frozen=True, slots=True)
class Beat:
    """The answer to a beat."""

    stamp: int


ServerMessage = Verdict | Memory | Beat


def is_beat(frame: pb.ServerFrame) -> bool:
    return frame.HasField("beat")


class FrameReader:
    """Reads the frames of one stream, all of them in order."""

    def __init__(self) -> None:
        self._verdicts = protobuf.VerdictReader()

    def messages_in(self, frame: pb.ServerFrame) -> Iterator[ServerMessage]:
        """The messages of a frame, in order; none of a frame from a later version."""
        kind = frame.WhichOneof("frame")
        if kind == "verdict":
            verdict = self._verdicts.read_verdict(frame.verdict)
            yield verdict
            for rows in frame.verdict.memory:
                yield protobuf.rows_from_proto(rows, verdict)
        elif kind == "memory":
            yield protobuf.memory_from_proto(frame.memory)
        elif kind == "beat":
            yield Beat(frame.beat.stamp)


class FrameSender:
    """Sends messages on the open stream; without one they are dropped, since the next Open says what matters."""

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._drafts = protobuf.DraftWriter()
        self._stream = 0  # that these drafts are of

    def ask(self, ask: Ask) -> None:
        self._drafts = protobuf.DraftWriter()
        self._connection.queue_frame(pb.ClientFrame(ask=protobuf.ask_to_proto(ask)))

    def send_draft(self, message: Draft | Ack) -> None:
        """Sends a draft, or what takes its place while there is none."""
        connection = self._connection
        if not connection.is_up:
            return
        if self._stream != connection.stream_number:
            self._stream, self._drafts = connection.stream_number, protobuf.DraftWriter()
        if isinstance(message, Draft):
            self._connection.queue_frame(pb.ClientFrame(draft=self._drafts.write_draft(message)))
        else:
            self._connection.queue_frame(pb.ClientFrame(ack=pb.Ack(committed=message.committed)))

    def beat(self, stamp: int) -> None:
        self._connection.queue_frame(pb.ClientFrame(beat=pb.Beat(stamp=stamp)))

    def stop(self, base: int, ask: int) -> None:
        """Asks the server to end the answer to question `ask` at position `base` of it."""
        self._connection.queue_frame(pb.ClientFrame(stop=pb.Stop(base=base, ask=ask)))

    def credit(self, taken: int) -> None:
        """Allows the server to send as many bytes of memory again."""
        self._connection.queue_frame(pb.ClientFrame(credit=pb.Credit(bytes=taken)))

    def set_memory(self, thin: ThinMemory | None) -> None:
        """Asks for these rows of memory from now on; None: for all."""
        message = pb.SetMemory(thin=protobuf.thin_memory_to_proto(thin) if thin is not None else None)
        self._connection.queue_frame(pb.ClientFrame(set_memory=message))

    def set_codec(self, codec: Codec) -> None:
        self._connection.queue_frame(pb.ClientFrame(set_codec=pb.SetCodec(codec=codec.value)))  # type: ignore[arg-type]

"""Takes the place of an engine's connection: a test opens streams, says what comes, and reads what was sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Drafting
from moa_client.engine import session_exchange
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.outages import LinkLosses
from moa_client.link.stream import StreamTraffic
from moa_shared.errors import MoaError, UnavailableError
from moa_shared.protocol.prefix_hash import PrefixHashes

VOCAB = 50
IDENTITY = pb.Identity(target_id="toy", target_fingerprint=b"t", tokenizer_hash=b"k")
LINK = cast(Fleet, SimpleNamespace(silence_seconds=60.0, losses=LinkLosses()))


class FakeDialer:
    """Knows one server."""

    address = "host:1"
    label = "host"
    has_other = False

    def chooses_again(self) -> bool:
        return False

    def look_around(self) -> None:
        pass

    def seek_form(self, *, is_needed: bool) -> bool:
        return False

    def on_stalled(self) -> None:
        pass


class FakeConnection:
    """State: whether a stream is open, what was sent on all of them, and what was done with them."""

    def __init__(
        self,
        link: Fleet,
        make_open: Callable[[str], pb.Open],
        post: Callable[[FrameReceived | StreamOpened | StreamLost], None],
        text: PrefixHashes,
    ) -> None:
        self.dialer = FakeDialer()
        self.traffic = StreamTraffic()
        self.is_up = False
        self.is_trying = False
        self.stream_number = 0
        self.rtt_ms = 0.0
        self.opens: list[pb.Open] = []
        self.sent: list[pb.ClientFrame] = []
        self.done: list[str] = []
        self._make_open = make_open
        self._post = post

    # ------------------------------------------------------------ for the engine

    def start(self) -> None:
        self.is_trying = not self.is_up
        self.done.append("start")

    def send(self, frame: pb.ClientFrame) -> None:
        if self.is_up:
            self.sent.append(frame)

    def accept(self, happened: FrameReceived | StreamOpened | StreamLost) -> bool:
        return happened.stream == self.stream_number

    async def drop(self) -> None:
        self._leave("drop")

    async def lose(self) -> None:
        self._leave("lose")

    async def leave(self) -> None:
        self._leave("leave")

    def _leave(self, how: str) -> None:
        self.is_up = self.is_trying = False
        self.stream_number += 1
        self.done.append(how)

    # ------------------------------------------------------------ for a test

    def open(self, *, address: str = "host:1", label: str = "host", **opened: Any) -> None:
        """A server opens the stream."""
        self.opens.append(self._make_open(address))
        self.stream_number += 1
        self.is_up, self.is_trying = True, False
        self._post(StreamOpened(self.stream_number, pb.Opened(**opened), 10.0, address, label))

    def receive(self, **frame: Any) -> None:
        """A frame comes."""
        self._post(FrameReceived(self.stream_number, pb.ServerFrame(**frame)))

    def verdict(self, ask: int, base: int, tokens: Sequence[int], **fields: Any) -> None:
        """A verdict comes."""
        self.receive(verdict=pb.Verdict(ask=ask, base=base, tokens=tokens, **fields))

    def end(self, error: MoaError | None = None, *, retrying: bool = False, **fields: Any) -> None:
        """The stream ends."""
        self.is_up, self.is_trying = False, retrying
        error = error or UnavailableError("The server has closed the connection.")
        self._post(StreamLost(self.stream_number, error, retrying, broke=False, **fields))


def use_fake_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are made in this test have a `FakeConnection`."""
    monkeypatch.setattr(session_exchange, "ServerConnection", FakeConnection)


def bare_device() -> Device:
    """A device without a drafter."""
    tokenizer = SimpleNamespace(shown=str)
    return Device(cast(Any, None), cast(Any, tokenizer), IDENTITY, Drafting(), frozenset({VOCAB - 1}), 1000)

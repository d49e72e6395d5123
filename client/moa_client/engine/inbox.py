"""What a conversation's engine handles, one thing at a time: news of the stream, the drafter's results, and findings.

State: what was posted and is not handled yet, in order.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError

from moa_client.device.loading import Device
from moa_client.drafting.streamed import DrafterResult
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened


@dataclass(frozen=True, slots=True)
class SameModel:
    """The server has the conversation's model; `served` is what it describes."""

    served: pb.DescribeResponse


@dataclass(frozen=True, slots=True)
class TargetKnown:
    """The server's model can continue what a companion has begun; the device is for that model."""

    device: Device


@dataclass(frozen=True, slots=True)
class OtherModel:
    """The server cannot continue the conversation."""

    error: MismatchError


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The server has not said what it is."""

    error: MoaError


@dataclass(frozen=True, slots=True)
class DrafterReady:
    """The server's drafter is here."""

    device: Device


@dataclass(frozen=True, slots=True)
class DrafterUnusable:
    """The server's drafter cannot be used here."""

    error: MoaError


@dataclass(frozen=True, slots=True)
class Wake:
    """Something may be due."""


StreamEvent = FrameReceived | StreamOpened | StreamLost
ServerFinding = SameModel | TargetKnown | OtherModel | NoAnswer | DrafterReady | DrafterUnusable
InboxItem = StreamEvent | DrafterResult | ServerFinding | Wake


class Inbox:
    """The queue of one engine."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[InboxItem] = asyncio.Queue()

    @property
    def is_empty(self) -> bool:
        return self._items.empty()

    def post(self, item: InboxItem) -> None:
        """Appends an item; call it on the event loop."""
        self._items.put_nowait(item)

    async def take(self, seconds: float | None) -> InboxItem | None:
        """The oldest item, once there is one; None: none has come in `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await self._items.get()
        except TimeoutError:
            return None

    def take_now(self) -> InboxItem | None:
        """The oldest item; None: there is none."""
        return None if self._items.empty() else self._items.get_nowait()

    def clear(self) -> None:
        while not self._items.empty():
            self._items.get_nowait()

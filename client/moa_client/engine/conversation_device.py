"""Who drafts in one conversation: its device, that device's drafter with its memory, and both ways to draft.

State: the device, and the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.memory_codec import Codec

from moa_client.conversation.events import ExecutionChanged
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterResult
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.standalone import DeviceDrafting
from moa_client.link.availability import Availability


class ConversationDevice:
    """The device of one conversation: its identity, which servers learn, and its drafter.

    `post` takes what the drafter has to say; `executor`: that drafters of several conversations share; None: its own.
    """

    def __init__(
        self,
        device: Device,
        codec: Codec,
        settings: DraftingSettings,
        answers: OpenAnswers,
        availability: Availability,
        post: Callable[[DrafterResult], None],
        executor: DrafterExecutor | None,
    ) -> None:
        self.device = device
        self.next: Device | None = None  # from the next question on that has nothing unverified before it
        self._answers = answers
        self._parts = (codec, settings, answers, availability, post, executor)
        self.drafting = self._new_drafting()

    def _new_drafting(self) -> DeviceDrafting:
        drafting, step_ms = self.device.drafting, self.device.target.step_ms
        if drafting is None:
            return DeviceDrafting(None, {}, step_ms, *self._parts)
        return DeviceDrafting(drafting.new_drafter(), drafting.planes, step_ms, *self._parts, drafting.narrow)

    def change(self, device: Device) -> None:
        """Drafts with another device, while no stream is open; the next one has its drafter's fingerprint."""
        before = self.drafting
        before.close()
        self.device, self.next = device, None
        self.drafting = self._new_drafting()
        self.drafting.take_over(before)

    def adopt(self, device: Device) -> None:
        """The device is for a server's model now; what it writes, and drafts, stays the same."""
        self.device = device
        self._answers.end_rule = device.target.end_rule

    def refuse_drafter(self) -> None:
        """The server has no memory for the drafter; a stream is opened without it from now on."""
        self.device, self.next = self.device.refused(), None
        self.drafting.stop_for_servers()

    def change_execution(self, opened: pb.Opened) -> None:
        """Called when the server computes differently from the one on which the conversation began."""
        is_news = bool(self.device.identity.execution)  # if no server was ever reached, there is nothing to compare
        self.device = replace(self.device, target=self.device.target.on_execution(opened))
        if self.next is not None:
            self.next = replace(self.next, target=self.next.target.on_execution(opened))
        self._answers.end_rule = self.device.target.end_rule
        if is_news:
            execution = opened.new_execution.execution
            changed = ExecutionChanged(execution.level, execution.exact, self.device.target.fingerprint)
            self._answers.events.append(changed)

"""Who drafts in one conversation: its device, that device's drafter with its memory, and both ways to draft.

State: the device, the next one, and for how long the device has not drafted. Invariant: while a server decides the
text, the drafter drafts for it; while none does, it writes standalone text or holds it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane, ThinMemory
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.conversation.events import ExecutionChanged
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterResult, DrafterThread
from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.link.availability import Availability
from moa_client.memory import MemoryPlan

# Tokens without a draft of this device before it gives rows up: a server that drafts now and then, or is only asked
# whether it has time again, would have all rows sent anew each time.
CALM_TOKENS = 64


class DeviceDrafting:
    """The drafter of one conversation, its memory, and drafting with and without a server.

    `drafter`: None: the server answers by plain steps. `planes`: numbers of a row of each plane of memory that it
    reads. The other arguments are those of `OnlineDrafting` and `DrafterThread`.
    """

    def __init__(
        self,
        drafter: ClientDrafter | None,
        planes: Mapping[Plane, int],
        plain_ms: float,
        codec: Codec,
        settings: DraftingSettings,
        answers: OpenAnswers,
        availability: Availability,
        post: Callable[[DrafterResult], None],
        executor: DrafterExecutor | None = None,
    ) -> None:
        self._answers = answers
        self._availability = availability
        self._rule = settings.standalone
        self._thread = thread = DrafterThread(drafter, post, executor) if drafter is not None else None
        take_rows = thread.take_rows if thread is not None and thread.drafter.reads_memory else None
        self.memory = MemoryPlan(take_rows, planes, codec)
        drafts, levels = thread if settings.device_drafts else None, drafter.most_depth if drafter is not None else None
        self.online = OnlineDrafting(settings, answers.conversation, drafts, self.memory, plain_ms, block_levels=levels)
        self.standalone = StandaloneDrafting(answers, thread, self.memory, settings.standalone)
        self.lets_server_run_ahead = drafter is None or settings.server_runs_ahead
        self._calm_tokens = CALM_TOKENS  # before the first draft there is nothing that rows would be missed for

    def wanted_memory(self, now: float) -> ThinMemory | None:
        """The rows that are enough now; None: all, if any."""
        reads_itself = self._thread is not None and self._thread.may_begin  # a companion writes without any row
        is_link_trusted = reads_itself or self._availability.outages.is_link_trusted(now)
        is_calm = self._calm_tokens >= CALM_TOKENS and not self.online.drafts
        return self.memory.fewest if is_calm and is_link_trusted else None

    def count(self, tokens: int) -> None:
        """Counts tokens of a verdict, which say for how long the device has not drafted."""
        self._calm_tokens = 0 if self.online.drafts else self._calm_tokens + tokens

    def write_on(self, now: float) -> None:
        """Lets the drafter write without a server; ends the answer, or leaves it to the server, when it is time."""
        self.standalone.write_on(now)
        if self._availability.may_end_answers(now):
            self._answers.end_standalone()
        answer = self._answers.current
        if answer is not None and self.is_holding_back:
            is_lost = self.standalone.is_unread and self._availability.may_end_answers(now)
            if is_lost or self._availability.outages.has_lasted(now, self._rule.leave_ms):
                answer.left = True  # it goes on when there is a server again
                self._answers.end_standalone()

    @property
    def is_holding_back(self) -> bool:
        """Whether the device could continue the answer, but with text that is too unlikely to be right."""
        return not self._availability.is_served and self._answers.current is not None and self.standalone.is_waiting

    @property
    def patience_ms(self) -> float | None:
        """How long the user waits for an answer that this device cannot continue; None: there is no such answer.

        As long as with a device that could continue it, and holds its text back; a person less for one not begun.
        """
        job, rule = self._answers.current, self._rule
        if job is None or self.standalone.can_write:
            return None
        may_begin = rule.mode == "always" or self.standalone.is_read(job)
        return rule.end_ms if rule.tokens_per_s and not may_begin else rule.leave_ms

    def wake_ms(self, now: float) -> float | None:
        """When the drafter should continue if nothing happens; None: no need."""
        times = [self.memory.hold_until_ms if self.memory.hold_until_ms > now else None]
        if not self._availability.is_served:
            leaves = self._availability.outages.reaches_ms(self._rule.leave_ms) if self.is_holding_back else None
            times += [self.standalone.wake_ms(), leaves]
        return min((time for time in times if time is not None), default=None)

    def tell(self, text: Sequence[int], hashes: PrefixHashes) -> None:
        """Gives the drafter the committed text; memory rows of what it must forget are dropped too."""
        if self._thread is not None:
            self._thread.sampling = self._answers.conversation.sampling
            self.memory.crop(self._thread.tell(text, hashes))

    def read_question(self, text: Sequence[int], hashes: PrefixHashes) -> None:
        """Has a drafter that reads texts itself begin to read while the server reads the question."""
        if self._thread is not None and self._thread.may_begin:
            self.tell(text, hashes)

    def restart(self) -> None:
        """Called when the text under the drafter's work has changed: what it is making is out of date."""
        self.online.restart()
        self.standalone.restart()

    def stop_for_servers(self) -> None:
        """The drafter only writes without a server: no server has memory for it any more."""
        self.memory.stop()
        self.online.stop()
        self.lets_server_run_ahead = True

    def take_over(self, before: DeviceDrafting) -> None:
        """Takes over what another drafter of the same conversation has learned of server, link and user."""
        self.online.window.take_over(before.online.window)
        self.standalone.asked_for = before.standalone.asked_for

    def close(self) -> None:
        """Lets the drafter end what it is doing; its results are no longer posted."""
        if self._thread is not None:
            self._thread.close()


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
        return DeviceDrafting(drafting.new_drafter(), drafting.planes, step_ms, *self._parts)

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

"""Writes the current answer on the device while no server decides its text, and chooses between that and drafts.

State: whether the drafter has more to say, which text the step under way continues, how likely it is that all of that
since the newest decided token is right, and a token that is too unlikely to be shown. Clock readings are arguments, in
milliseconds. Invariants: a token that continues a text since changed is discarded; while a server decides the text, the
drafter drafts for it; while none does, it writes standalone text or holds it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane, ThinMemory
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.conversation import events
from moa_client.conversation.conversation import OpenAnswer
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.drafting.drafter_thread import DrafterExecutor, DrafterResult, DrafterThread, TokenWritten
from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import READING_SPEED, DraftingSettings, StandaloneRule
from moa_client.link.availability import Availability
from moa_client.memory import MemoryPlan

# Tokens without a draft of this device before it gives rows up: a server that drafts now and then, or is only asked
# whether it has time again, would have all rows sent anew each time.
CALM_TOKENS = 64


class StandaloneDrafting:
    """Writes the answers of one conversation, a token at a time. `thread`: the drafter's; None without one."""

    def __init__(
        self, answers: OpenAnswers, thread: DrafterThread | None, memory: MemoryPlan, rule: StandaloneRule
    ) -> None:
        self.asked_for = False  # the user wants the text, right or not
        self._answers = answers
        self._thread = thread
        self._memory = memory
        self._rule = rule
        self._due_ms = 0.0  # when the next token may be shown
        self._chance = 1.0  # that all of the text is right
        self._has_more = True
        self._held: TokenWritten | None = None
        self._left: OpenAnswer | None = None  # the answer that is left to the server, which has not read its question
        self._serial = 0  # of the provisional text
        self._told: tuple[int, OpenAnswer] | None = None  # the serial and the job whose beginning the drafter has

    @property
    def can_write(self) -> bool:
        """Whether the device can continue the answer on its own, if it may."""
        return self._thread is not None and self._has_more

    @property
    def is_unread(self) -> bool:
        """Whether the answer waits for a server because none has read its question."""
        left = self._left
        return left is not None and left is self._answers.current and not self._may_begin(left)

    @property
    def is_waiting(self) -> bool:
        """Whether the answer waits for a server: what the drafter could say is too unlikely to be shown."""
        if self.is_unread:
            return True
        return self._held is not None and not self._may_show(self._held)

    def restart(self) -> None:
        """Called when the text that the drafter is writing after has changed."""
        self._serial += 1
        self._held = None
        self._chance = 1.0

    def renew(self) -> None:
        """Called when the drafter may have something to say again: for a new answer, or one that a server continues."""
        self.restart()
        self._has_more = True

    def begin(self) -> None:
        """Called when there is no server: what was guessed for one is not shown as it is."""
        self.restart()
        self._answers.conversation.in_flight.drop()

    def write_on(self, now: float) -> None:
        """Lets the drafter write the next token of the current answer, when it is due."""
        job, thread = self._next_job, self._thread
        if job is None or thread is None:
            return
        if not self._may_begin(job):
            if self._left is not job:
                self._left = job
                self._answers.events.append(events.HeldBack(unread=True))
            return
        if self._held is not None:
            if not self._may_show(self._held):
                return
            held, self._held = self._held, None
            self._show(now, job, held)
            if job.has_ended:
                return
        if now < self._due_ms:
            return
        if self._told != (self._serial, job):  # it knows what it writes itself
            self._told = self._serial, job
            self._memory.crop(thread.tell(self._answers.text_before(job)))
        thread.write(self._serial, job.written, job.settings.sampling.within(self._answers.start_of(job)))

    def on_written(self, now: float, written: TokenWritten) -> None:
        job = self._answers.current
        if job is None or job.has_ended or (written.serial, written.length) != (self._serial, len(job.written)):
            return  # of another text, or asked for twice: the drafter is free before its token is taken in
        if written.token is None:
            self._has_more = False
        elif self._may_show(written):
            self._show(now, job, written)
        else:
            self._held = written
            self._answers.events.append(events.HeldBack())

    def wake_ms(self) -> float | None:
        """When to call `write_on` again if nothing happens; None: no need."""
        job = self._next_job
        return self._due_ms if self._held is None and job is not None and self._may_begin(job) else None

    @property
    def _next_job(self) -> OpenAnswer | None:
        """What the drafter can continue now; None: nothing."""
        job, thread = self._answers.current, self._thread
        if job is None or job.has_ended or thread is None or thread.busy or not self._has_more:
            return None
        return job

    def _may_begin(self, job: OpenAnswer) -> bool:
        """Whether there is anything to go by: the server's memory of the question, or a companion's own reading."""
        mode = self._rule.mode
        if self.asked_for or mode == "always" or self.is_read(job):
            return True
        return mode == "auto" and self._thread is not None and self._thread.may_begin

    def is_read(self, answer: OpenAnswer) -> bool:
        """Whether a server has begun an answer: what the drafter knows of a question, it knows from there."""
        return answer is self._answers.front and self._answers.conversation.answer_length > 0

    def _may_show(self, written: TokenWritten) -> bool:
        """A companion's text is worth reading also where the target would say something else."""
        if self.asked_for or self._rule.mode == "always":
            return True
        is_companion = self._thread is not None and self._thread.may_begin
        return self._rule.mode == "auto" and (is_companion or self._is_likely(written.chance))

    def _is_likely(self, chance: float) -> bool:
        return self._chance * chance >= self._rule.least_chance

    def _show(self, now: float, job: OpenAnswer, written: TokenWritten) -> None:
        if written.token is None:
            return
        likely = self._is_likely(written.chance)
        self._chance *= written.chance
        is_wanted = likely or self.asked_for or self._rule.mode == "always"
        # What may be withdrawn is not worth more than reading speed, also where nobody reads along.
        if speed := self._rule.tokens_per_s or (0.0 if is_wanted else READING_SPEED):
            step_ms = 1e3 / speed
            self._due_ms = max(self._due_ms, now - step_ms) + step_ms  # what the token has taken is not added to it
        self._answers.write(job, [written.token], [written.chance], likely=likely)


class DeviceDrafting:
    """The drafter of one conversation, its memory, and drafting with and without a server.

    `drafter`: None: the server answers by plain steps. `planes`: numbers of a row of each plane of memory that it
    reads; `narrow`: as of `MemoryPlan`. The other arguments are those of `OnlineDrafting` and `DrafterThread`.
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
        narrow: int = 0,
    ) -> None:
        self._answers = answers
        self._availability = availability
        self._rule = settings.standalone
        self._thread = thread = DrafterThread(drafter, post, executor) if drafter is not None else None
        take_rows = thread.take_rows if thread is not None and thread.drafter.reads_memory else None
        self.memory = MemoryPlan(take_rows, planes, codec, narrow)
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

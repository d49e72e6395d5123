"""What a conversation exchanges with its server, and what its device drafts meanwhile.

State: what the server has been sent on the newest stream, and the device that drafts. Nothing waits for the server or
the drafter: frames are queued on the connection, the drafter works on its thread.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, ProtocolError, RateLimitError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Memory, Verdict
from moa_shared.protocol.protobuf_messages import thin_memory_to_proto

from moa_client.conversation.conversation import Job, Phase
from moa_client.conversation.events import LOOK_UP, DrafterChanged, ExecutionChanged
from moa_client.conversation.figures import SessionFigures
from moa_client.conversation.open_answers import AnswerQueue
from moa_client.device.loading import Device
from moa_client.drafting.device_drafting import DeviceDrafting
from moa_client.drafting.drafter_thread import DrafterExecutor
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DrafterFailed, DraftExtended, TokenWritten
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_handshake import SentState, SessionHandshake
from moa_client.link.availability import NOTHING, Availability, Reaction
from moa_client.link.connection import ServerConnection, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.stream import FrameReader

log = logging.getLogger(__name__)


class SessionExchange:
    """The session of one conversation at its server, and the drafting on this device.

    Args:
        link: to the server, or to several.
        answers: whose front answer it is about.
        device: whose identity the server learns, and whose drafter drafts.
        inbox: takes what the connection and the drafter have to say.
        executor: that drafters of several conversations share; None: one of its own.
    """

    def __init__(
        self,
        link: Fleet,
        answers: AnswerQueue,
        availability: Availability,
        device: Device,
        settings: DraftingSettings,
        codec: Codec,
        inbox: Inbox,
        executor: DrafterExecutor | None = None,
    ) -> None:
        self.answers = answers
        self.availability = availability
        self.connection = ServerConnection(link, self._make_open, inbox.post, answers.conversation.hashes)
        self.figures = SessionFigures()
        self.failure: MoaError | None = None  # that ends the answer
        self.device = device
        self.next_device: Device | None = None  # from the next question on that has nothing unverified before it
        self.is_outdated = False  # the stream is about a conversation that was begun again or rewound since
        self._conversation = answers.conversation
        self._reader = FrameReader()
        self._settings = settings
        self._codec = codec
        self._inbox = inbox
        self._executor = executor
        self._handshake = SessionHandshake(self._conversation, settings)
        self._sent = SentState()
        self.drafting = self._new_drafting()

    # ------------------------------------------------------------ drafts

    def draft_on(self, now: float) -> None:
        """Lets the device draft for the server, and sends what is due; without a server, lets it write."""
        if not self.availability.is_served:
            self.drafting.write_on(now)
        elif self.connection.is_up:
            for message in self.drafting.online.draft_on(now):
                self.connection.send_draft(message)

    def on_extended(self, extended: DraftExtended) -> None:
        self.drafting.online.on_extended(now_ms(), extended)
        self._end_trial()

    def _end_trial(self) -> None:
        """Says that the drafter was dropped, once; from the next question on the server sends it no memory."""
        device, drafting = self.device, self.device.drafting
        trial = drafting.trial
        if trial is None or not trial.is_dropped:
            return
        name = drafting.choice.name if drafting.choice is not None else "The drafter"
        reason = f"{name} guesses worse than look-up ({trial.figures}): this device drafts by look-up from now on."
        log.warning("%s", reason)
        self.device = device.with_drafting(trial=None)
        if self.next_device is None:
            self.next_device = device.with_dropped_drafter()
        standalone = device.companion.name if device.companion is not None else ""
        self.answers.events.append(DrafterChanged(LOOK_UP, reason, standalone))

    def on_completed(self, completed: DraftCompleted) -> None:
        draft = self.drafting.online.on_completed(completed) if self.availability.is_served else None
        if draft is not None:
            self.connection.send_draft(draft)

    def on_written(self, written: TokenWritten) -> None:
        if not self.availability.is_served:
            self.drafting.standalone.on_written(now_ms(), written)

    def on_drafter_failed(self, failed: DrafterFailed) -> None:
        if isinstance(failed.error, ProtocolError):
            raise failed.error
        self.failure = failed.error

    def wake_ms(self, now: float) -> float | None:
        """When something is due if nothing happens; None: nothing will be."""
        is_up, patience_ms = self.connection.is_up, self.drafting.patience_ms
        times = (self.availability.wake_ms(is_up=is_up, patience_ms=patience_ms), self.drafting.wake_ms(now))
        return min((time for time in times if time is not None and time < math.inf), default=None)

    # ------------------------------------------------------------ the device

    async def change_device(self) -> None:
        """Drafts with the next device; the next stream is opened with its drafter's fingerprint."""
        device, self.next_device = self.next_device, None
        if device is None:
            return
        await self.connection.drop()
        before = self.drafting
        before.close()
        self._inbox.clear()
        self.device = device
        self.drafting = self._new_drafting()
        self.drafting.take_over(before)

    def adopt(self, device: Device) -> None:
        """The device is for a server's model now; what it writes, and drafts, stays the same."""
        before = self.device.drafting
        self.device = device.with_drafting(drafter=before.drafter, new_drafter=before.new_drafter)
        self.answers.end_rule = self.device.end_rule

    def refuse_drafter(self) -> None:
        """The server has no memory for the drafter; a stream is opened without it from now on."""
        self.device = self.device.refused()
        self.drafting.stop_for_servers()

    def _new_drafting(self) -> DeviceDrafting:
        return DeviceDrafting(
            self.device.drafting.drafter,
            self.device.planes,
            self.device.step_ms,
            self._codec,
            self._settings,
            self.answers,
            self.availability,
            self._inbox,
            self._executor,
        )

    # ------------------------------------------------------------ questions

    def ask(self, ask: Ask | None) -> None:
        """Sends the question that is now the conversation's to the server, if there is one."""
        job = self.answers.front
        if ask is None or job is None:
            return
        self.drafting.online.on_asked()
        self.drafting.read_question(self._conversation.tokens, self._conversation.hashes)
        if self.connection.is_up and self.availability.is_served:
            self._send_ask(ask, job)

    async def stop(self) -> bool:
        """Ends the current answer for the user; whether it is over, and not only the server asked to end it.

        A standalone answer ends at once; later frames about it must not be handled, so the stream is left.
        """
        server_knows, connection = self.answers.current_is_front, self.connection
        if server_knows and self.availability.is_served:
            ask = self._conversation.ask_id
            if connection.is_up and self._sent.stopped != ask:  # once on each stream
                self._sent.stopped = ask
                connection.queue_frame(pb.ClientFrame(stop=pb.Stop(base=self._conversation.answer_length, ask=ask)))
            return False
        self.drafting.standalone.restart()
        self.answers.stop()
        if server_knows and (connection.is_up or connection.is_trying):
            await connection.lose()
        return True

    def _send_ask(self, ask: Ask, job: Job) -> None:
        self._handshake.check_form(ask.settings)
        online = self.drafting.online
        self._sent.question = ask.id
        self.connection.send_ask(replace(ask, provisional=online.propose_written(job.written)))
        online.mark_synced()

    # ------------------------------------------------------------ the stream

    def tick(self, now: float) -> Reaction:
        availability, connection = self.availability, self.connection
        return availability.tick(
            now,
            is_up=connection.is_up,
            is_trying=connection.is_trying,
            is_expected=self.answers.front is not None,
            patience_ms=self.drafting.patience_ms,
            has_other=availability.monitor.is_stuck(now) and connection.dialer.has_other,
        )

    def connect(self) -> None:
        """Opens a stream if there is none, unless the user wants no server."""
        if not self.availability.wants_offline:
            self.connection.start()

    async def reopen(self, now: float) -> None:
        """Gives the stream up as lost, and opens another one."""
        if self.availability.monitor.is_stuck(now):
            self.connection.dialer.on_stalled()
        await self.connection.lose()

    async def leave_outdated(self) -> None:
        """Leaves the stream if it is about a conversation that is no more; what remains of it is continued."""
        if not self.is_outdated:
            return
        if self._conversation.tokens:
            await self.connection.drop()  # without goodbye: the server's session is still good for what remains
        else:
            await self.connection.leave()
            self._handshake.forget_session()
            self.drafting.memory.restart()
        self._inbox.clear()  # of frames about the previous conversation
        self.is_outdated = False

    def _make_open(self, address: str) -> pb.Open:
        conversation, drafting = self._conversation, self.drafting
        job, ask = self.answers.front, None
        self._sent = SentState()
        if job is not None and conversation.phase is Phase.ANSWERING:
            ask = replace(conversation.resume(), provisional=drafting.online.propose_written(job.written))
            self._sent = SentState(ask.id, len(job.written))
        now = now_ms()
        drafting.memory.change(now, drafting.wanted_memory(now))
        return self._handshake.open(address, self.device, drafting, ask)

    def on_opened(self, stream: StreamOpened) -> None:
        opened, drafting, window = stream.opened, self.drafting, self.drafting.online.window
        self._reader = FrameReader()
        drafting.memory.on_opened(opened.codec)
        if opened.HasField("new_execution"):
            self._change_execution(opened)
        drafting.online.mark_synced()
        if (changed := self._handshake.on_opened(stream)) is not None:
            self.answers.events.append(changed)
            window.forget_server()
        if self.answers.front is not None:
            self._handshake.check_form(self.answers.front.settings)
        self.availability.on_opened(now_ms(), stream.took_ms, is_elsewhere=changed is not None)
        window.rtt_ms.add(stream.took_ms)
        if self._conversation.tokens:
            drafting.tell(self._conversation.tokens, self._conversation.hashes)
        drafting.online.on_opened(server_drafts=opened.server_drafts)
        if not self._handshake.thins_memory:
            drafting.memory.change(now_ms(), None)
        self._return(self._sent.provisional)

    def _fit_memory(self, now: float) -> None:
        """Asks for more rows of memory, or for fewer, if that has become right."""
        wanted, memory = self.drafting.wanted_memory(now), self.drafting.memory
        if self._handshake.thins_memory and wanted != memory.thin:
            thin = thin_memory_to_proto(wanted) if wanted is not None else None
            self.connection.queue_frame(pb.ClientFrame(set_memory=pb.SetMemory(thin=thin)))
            memory.change(now, wanted)

    def _change_execution(self, opened: pb.Opened) -> None:
        """Called when the server computes differently from the one on which the conversation began."""
        is_news = bool(self.device.identity.execution)  # if no server was ever reached, there is nothing to compare
        self.device = self.device.on_execution(opened)
        if self.next_device is not None:
            self.next_device = self.next_device.on_execution(opened)
        self.answers.end_rule = self.device.end_rule
        if is_news:
            execution = opened.new_execution.execution
            changed = ExecutionChanged(execution.level, execution.exact, self.device.fingerprint)
            self.answers.events.append(changed)

    def _return(self, sent: int) -> None:
        """Called when the server is available (again).

        `sent`: provisional tokens of the front answer that it has been given on this stream.
        """
        job, conversation, standalone = self.answers.front, self._conversation, self.drafting.standalone
        standalone.restart()
        is_asking = conversation.phase is Phase.ANSWERING
        if job is not None and is_asking and self._sent.question != conversation.ask_id:
            self._send_ask(conversation.repeat(), job)  # the question is newer than this stream's Open
            sent = len(job.written)
        self._fit_memory(now_ms())
        was_served = self.availability.is_served
        events = self.availability.on_return(is_answering=job is not None)
        if not was_served:
            standalone.renew()
            standalone.asked_for = False
            if job is not None and job.written:
                self.drafting.online.adopt_written(job.written, sent)
        self.answers.events += events

    def on_lost(self, lost: StreamLost) -> Reaction:
        """The stream is lost, or an attempt to open one has failed; what to do."""
        error, front = lost.error, self.answers.front
        if isinstance(error, ProtocolError):
            raise error
        if lost.rests:
            if front is not None:  # a question was on its way when the server took the stream for idle
                self.connection.start()
            return NOTHING
        if not lost.broke:
            self.availability.outages.on_failed(now_ms())
        if isinstance(error, RateLimitError) and lost.wait_seconds and front is not None:
            return self.availability.on_told_to_wait(now_ms(), error, 1e3 * lost.wait_seconds)
        if lost.retrying or front is None:
            return self.availability.on_lost(error, broke=lost.broke, is_expected=front is not None)
        return self.on_refused(error)

    def on_refused(self, error: MoaError) -> Reaction:
        """Ends the answer, or drops an earlier one, which the server will not verify."""
        if self.answers.current_is_front:
            self.failure = error  # the user must change the question
            return NOTHING
        self.drafting.restart()
        self.ask(self.answers.on_refused(error))
        if self.answers.front is not None:
            self.connection.start()
            return NOTHING
        return Reaction(events=self.availability.on_idle(error.message))

    # ------------------------------------------------------------ frames

    def on_server_frame(self, frame: pb.ServerFrame) -> None:
        if self.is_outdated:
            return
        now, availability = now_ms(), self.availability
        availability.on_frame(now, is_progress=not frame.HasField("beat"))
        if availability.wants_offline:  # the stream will be left
            return
        if availability.is_back(now):
            self._return(0)
        for message in self._reader.messages_in(frame):
            match message:
                case Verdict():
                    self._on_verdict(message, now)
                case Memory():
                    self.figures.newest.memory_bytes += len(message.payload)
                    if taken := self.drafting.memory.on_memory(now, message, self._conversation.hashes):
                        self.connection.queue_frame(pb.ClientFrame(credit=pb.Credit(bytes=taken)))
                case pb.Beat():
                    self._on_beat(message, now)

    def _on_verdict(self, verdict: Verdict, now: float) -> None:
        if verdict.finish is Finish.DRAINING:
            verdict = replace(verdict, finish=Finish.UNFINISHED)  # the server ends, not the answer
        effect = self.drafting.online.follow_verdict(now, verdict)
        self.drafting.count(len(effect.tokens))
        self._fit_memory(now)
        if effect.tokens:
            if self.answers.current_is_front:  # others belong to an earlier answer
                self.figures.newest.count_verdict(verdict)
            self.answers.on_committed(effect.tokens, effect.chances, effect.writers)
            text = self._conversation.tokens
            self.drafting.tell(text, self._conversation.hashes)
            codec = self.drafting.memory.on_verdict(now, len(effect.tokens), len(text))
            if codec is not None:
                self.connection.queue_frame(pb.ClientFrame(set_codec=pb.SetCodec(codec=codec.value)))  # type: ignore[arg-type]
        if effect.finish is not Finish.UNFINISHED:
            self.ask(self.answers.on_finished(effect.finish))
        job = self.answers.front
        if job is None or not job.written:
            self.answers.events += self.availability.on_verified()

    def _on_beat(self, beat: pb.Beat, now: float) -> None:
        took, window = self.availability.monitor.on_beat(now, beat.stamp), self.drafting.online.window
        if took is None:
            return
        window.rtt_ms.add(took)
        if window.step_ms.samples:
            self.answers.events += self.availability.grade(window.step_ms.mean)


def now_ms() -> float:
    """The clock of all timers, in milliseconds."""
    return 1e3 * time.monotonic()

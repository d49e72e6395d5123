"""One conversation with a server: asks, drafts, commits what the server decides, and continues when the link is lost.

State: the answers over the pure `Conversation`, the connection, whether a server is present, and the drafter on its
thread. One loop handles one thing at a time, from one inbox; nothing in it waits for a peer or for the drafter.
Invariants: committed text is the target's; standalone text is provisional until the server has decided it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moa_shared.errors import InternalError, MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.codec import Codec
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ask, Memory, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes

from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.events import Event, ExecutionChanged, LinkChanged, LinkState
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.jobs import Job, Turn
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import Drafted, DrafterThread, Fault, Grown, Wrote
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.standalone import StandaloneDrafting
from moa_client.link.channel import Link
from moa_client.link.connection import Came, Connection, Down, Up
from moa_client.link.frames import Beat, FrameSender, is_beat, make_open, read_frame
from moa_client.link.presence import GiveUp, Presence, SendBeat, Step
from moa_client.memory.plan import MemoryPlan

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb


@dataclass(slots=True)
class Told:
    """What the server has been told on the newest stream.

    Args:
        question: id of the newest question; 0: none.
        provisional: how many provisional tokens of its answer the Open gave.
        stopped: id of the question whose answer it was asked to end; 0: none.
    """

    question: int = 0
    provisional: int = 0
    stopped: int = 0


class ClientEngine:
    """A conversation over one link.

    Args:
        link: to the server.
        device: what this client holds.
        vocab_size: of the target.
        codec: the best one for memory; cheaper ones are also offered.
        offline: do not connect before `go_online`.
    """

    def __init__(
        self,
        link: Link,
        device: Device,
        vocab_size: int,
        codec: Codec,
        settings: DraftingSettings | None = None,
        *,
        offline: bool = False,
    ) -> None:
        self.settings = settings or DraftingSettings()
        self.conversation = Conversation(vocab_size)
        self.answers = AnswerQueue(self.conversation, device.end_rule)
        self.figures = Figures()
        self.presence = Presence(1e3 * link.silence_seconds, offline=offline)
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self.connection = Connection(link, self._make_open, self._inbox.put_nowait)
        self._sender = FrameSender(self.connection)
        self._codec = codec
        self._fit(device)
        self._next_device: Device | None = None
        self._told = Told()
        self._resume_token = b""
        self._failure: MoaError | None = None  # that ends the answer
        self._is_stopping = False  # the user wants the current answer to end, and has not seen it end
        self._is_renewed = False  # the conversation was started again: the server's session is no longer usable

    # ------------------------------------------------------------ for the surfaces

    @property
    def state(self) -> LinkState:
        """The state of the link."""
        return self.presence.state

    @property
    def status(self) -> LinkStatus:
        """The state for a status line."""
        figures = self.figures
        acceptance = figures.accepted / figures.tokens if figures.tokens else 0.0
        return LinkStatus(
            self.state, self.rtt_ms, figures.tokens_per_second, acceptance, figures.up_bytes, figures.down_bytes
        )

    @property
    def rtt_ms(self) -> float | None:
        """Smoothed round-trip time; None before one was measured."""
        return self.presence.monitor.rtt_ms

    @property
    def plain_step_ms(self) -> float | None:
        """Time of a plain step of the server; None before one was measured."""
        step_ms = self._drafting.window.step_ms
        return step_ms.mean if step_ms.samples else None

    @property
    def device(self) -> Device:
        """The device that drafts for the next question."""
        return self._next_device or self._device

    @property
    def unsettled(self) -> int:
        """Number of answers that ended without the server and are not verified yet."""
        return self.answers.unsettled

    async def ask(self, turn: Turn | Sequence[int], settings: AnswerSettings) -> AsyncGenerator[Event, None]:
        """Asks for an answer; yields what happens, and last `Ended`.

        Args:
            turn: the question's tokens, or a function that makes them from the conversation before it.

        Raises:
            MoaError: why there is no (more) answer. What arrived stays in the conversation; a question that got
                none is taken back.
        """
        traffic = self.connection.link.traffic
        up, down = traffic.up_bytes, traffic.down_bytes
        began = time.monotonic()
        figures = self.figures = Figures()
        await self._catch_up()
        fixed = turn
        begun = self.answers.begin(turn if callable(turn) else lambda _: fixed, settings)  # type: ignore[arg-type,return-value]
        job = self.answers.current
        try:
            self._ask(begun)
            if not self.presence.wants_offline:
                self.connection.start()
            async for event in self._run(lambda: self.answers.current is None):
                figures.on_event(event, time.monotonic() - began)
                figures.up_bytes, figures.down_bytes = traffic.up_bytes - up, traffic.down_bytes - down
                yield event
        finally:
            if self.answers.current is not None and self.answers.current is job:
                self._forget_current()
                await self.connection.drop()

    async def attend(self) -> AsyncGenerator[Event, None]:
        """Maintains the link between questions, until it is closed; yields state changes and `Settled` answers."""
        async for event in self._run(lambda: False):
            yield event

    async def settle(self) -> AsyncGenerator[Event, None]:
        """Verifies standalone answers while there is a server; yields `Settled` for each."""
        connection, presence = self.connection, self.presence

        def is_over() -> bool:
            has_link = connection.is_up or connection.is_trying
            return self.answers.front is None or presence.wants_offline or not has_link

        async for event in self._run(is_over):
            yield event

    def change_device(self, device: Device) -> None:
        """Uses another device from the next question on that has nothing unverified before it."""
        self._next_device = device

    async def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._is_stopping = True
        self._wake()

    def go_offline(self) -> None:
        """Continues without the server until `go_online`."""
        self.presence.go_offline()
        self._wake()

    def go_online(self) -> None:
        """Connects again."""
        self.presence.go_online()
        self.connection.start()
        self._wake()

    def reset(self) -> None:
        """Starts a new conversation; the server learns of it with the next question."""
        self.answers.reset()
        self._drafting.restart()
        self._is_renewed = True

    async def close(self) -> None:
        """Ends the conversation at the server, and the inference thread."""
        await self.connection.leave()
        if self._thread is not None:
            self._thread.close()

    # ------------------------------------------------------------ before an answer

    async def _catch_up(self) -> None:
        """Makes everything ready for a new answer, and handles what has happened since the last one."""
        self._is_stopping, self._failure, self.presence.error = False, None, None
        self._standalone.renew()
        if self._is_renewed:
            await self.connection.leave()
            self._empty_inbox()  # of frames about the previous conversation
            self._resume_token, self._is_renewed = b"", False
            self._memory.restart()
        if self._next_device is not None and self.answers.front is None:
            await self._refit(self._next_device)
        while not self._inbox.empty():
            self._on_item(self._inbox.get_nowait())

    def _fit(self, device: Device) -> None:
        """Sets up drafting with this device."""
        self._device = device
        self._thread = DrafterThread(device.drafter, self._inbox.put_nowait) if device.drafter is not None else None
        reads_memory = device.drafter is not None and device.drafter.reads_memory
        remember = self._thread.remember if self._thread is not None and reads_memory else None
        self._memory = MemoryPlan(remember, device.planes, self._codec)
        self._drafting = OnlineDrafting(
            self.settings, self.conversation, self._thread, self._memory, self._sender.draft, device.step_ms
        )
        self._standalone = StandaloneDrafting(self.answers, self._thread, self._tell_drafter)

    async def _refit(self, device: Device) -> None:
        """Changes the device between two answers: reopens the stream with the new drafter's fingerprint."""
        self._next_device = None
        await self.connection.drop()
        if self._thread is not None:
            self._thread.close()
        self._empty_inbox()
        before = self._drafting.window
        self._fit(device)
        self._drafting.window.take_over(before)

    def _empty_inbox(self) -> None:
        with suppress(asyncio.QueueEmpty):
            while True:
                self._inbox.get_nowait()

    # ------------------------------------------------------------ questions

    def _ask(self, ask: Ask | None) -> None:
        """Sends the question that is now the conversation's to the server, if there is one."""
        job = self.answers.front
        if ask is None or job is None:
            return
        self._drafting.on_asked()
        if self.connection.is_up and self.presence.is_served:
            self._send_ask(ask, job)

    def _send_ask(self, ask: Ask, job: Job) -> None:
        self._told.question = ask.id
        self._sender.ask(replace(ask, provisional=self._drafting.propose_written(job.written)))
        self._drafting.on_told()

    def _forget_current(self) -> None:
        """Abandons the current answer."""
        self.answers.forget_current()
        self._drafting.restart()
        self._standalone.restart()

    # ------------------------------------------------------------ the loop

    async def _run(self, over: Callable[[], bool]) -> AsyncGenerator[Event, None]:
        while True:
            await self._advance()
            while self.answers.events:
                yield self.answers.events.popleft()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if over():
                self.presence.monitor.rest()
                return
            await self._take()

    async def _take(self) -> None:
        """Waits for the next event, and handles it and those that arrived with it."""
        wake = self._wake_ms()
        try:
            async with asyncio.timeout(None if wake is None else max(0.0, (wake - _now_ms()) / 1e3)):
                item = await self._inbox.get()
        except TimeoutError:
            return
        while True:
            self._on_item(item)
            if self._inbox.empty() or self.answers.events:
                return
            item = self._inbox.get_nowait()

    def _on_item(self, item: object) -> None:
        if isinstance(item, Came | Up | Down) and not self.connection.accept(item):
            return
        try:
            match item:
                case Came():
                    self._on_frame(item.frame)
                case Up():
                    self._on_up(item)
                case Down():
                    self._on_down(item)
                case Grown():
                    self._drafting.on_grown(_now_ms(), item)
                case Drafted() if self.presence.is_served:
                    self._drafting.on_round(item)
                case Wrote() if not self.presence.is_served:
                    self._standalone.on_wrote(item)
                case Fault():
                    self._on_fault(item.error)
        except ProtocolError as error:
            self._do(*self.presence.distrust(error))

    async def _advance(self) -> None:
        """Does what is due now: beats, timers, drafting, frames."""
        now, connection = _now_ms(), self.connection
        steps = self.presence.tick(
            now,
            is_up=connection.is_up,
            is_trying=connection.is_trying,
            is_expected=self.answers.front is not None,
            is_waiting=self._is_waiting,
        )
        for step in steps:
            if step is Step.LEAVE:
                await connection.drop()
            elif step is Step.REOPEN:
                connection.rtt_ms = self.rtt_ms or 0.0
                await connection.lose()
            else:
                self._do(step)
        if self._is_stopping and self.answers.current is not None:
            await self._stop_now()
        if self.presence.is_served:
            if connection.is_up:
                self._drafting.draft_on(now)
            return
        self._standalone.write_on()
        if self.presence.may_end_answers:
            self.answers.end_alone()

    def _do(self, *steps: Step | SendBeat | GiveUp | LinkChanged) -> None:
        for step in steps:
            match step:
                case LinkChanged():
                    self.answers.events.append(step)
                case SendBeat():
                    self._sender.beat(step.stamp)
                case GiveUp():
                    self._failure = step.error
                case Step.GO_STANDALONE:
                    self._drafting.restart()
                    if self._is_stopping:
                        self._standalone.restart()
                    else:
                        self._standalone.begin()

    def _wake_ms(self) -> float | None:
        """When to check again if nothing happens."""
        times = [self.presence.wake_ms(is_up=self.connection.is_up, is_waiting=self._is_waiting)]
        if self._memory.hold_until_ms > _now_ms():
            times.append(self._memory.hold_until_ms)
        return min((time for time in times if time is not None), default=None)

    @property
    def _is_waiting(self) -> bool:
        """Whether the user waits for an answer that this device cannot continue on its own."""
        return self.answers.current is not None and not self._standalone.can_write

    def _wake(self) -> None:
        self._inbox.put_nowait(None)

    async def _stop_now(self) -> None:
        """Ends the answer here for the user: tells the server, once on each stream, until it has ended it.

        A standalone answer ends at once; later frames about it must not be handled, so the stream is left.
        """
        connection = self.connection
        server_knows = self.answers.current_is_front
        if server_knows and self.presence.is_served:
            ask = self.conversation.ask_id
            if connection.is_up and self._told.stopped != ask:
                self._told.stopped = ask
                self._sender.stop(self.conversation.answer_length, ask)
            return
        self._is_stopping = False
        self._standalone.restart()
        self.answers.stop()
        if server_knows and connection.is_up | connection.is_trying:
            await connection.lose()

    # ------------------------------------------------------------ the stream

    def _make_open(self) -> pb.Open:
        """The handshake with the current state of everything."""
        device, conversation = self._device, self.conversation
        self.connection.rtt_ms = self.rtt_ms or 0.0
        if self.settings.reconcile == "keep" and not self.presence.is_served:
            self.answers.keep()
            self._standalone.restart()  # what the drafter is writing now continues text that is being committed
            self._wake()
        job, ask = self.answers.front, None
        self._told = Told()
        if job is not None and conversation.phase is Phase.ANSWERING:
            ask = replace(conversation.resume(), provisional=self._drafting.propose_written(job.written))
            self._told = Told(ask.id, len(job.written))
        return make_open(
            device.identity,
            self._resume_token,
            conversation.tokens,
            ask,
            codecs=self._memory.offered,
            memory_from=self._memory.first_missing(len(conversation.tokens)),
            reused_state=device.state_width > 0,
            run_ahead=device.drafter is None or self.settings.server_runs_ahead,
        )

    def _on_up(self, up: Up) -> None:
        opened = up.opened
        self._memory.on_opened(opened.codec)
        if opened.HasField("new_execution"):
            self._change_execution(opened)
        self._resume_token = opened.resume_token
        self._drafting.on_told()
        self.presence.on_opened(_now_ms(), up.took_ms)
        self._drafting.window.rtt_ms.add(up.took_ms)
        if self.conversation.tokens:
            self._tell_drafter(self.conversation.tokens, self.conversation.hashes)
        self._return(self._told.provisional)

    def _change_execution(self, opened: pb.Opened) -> None:
        """Called when the server computes differently from the one on which the conversation began."""
        is_news = bool(self._device.identity.execution)  # if no server was ever reached, there is nothing to compare
        self._device = self._device.on_execution(opened)
        if self._next_device is not None:
            self._next_device = self._next_device.on_execution(opened)
        self.answers.end_rule = self._device.end_rule
        if is_news:
            execution = opened.new_execution.execution
            self.answers.events.append(ExecutionChanged(execution.level, execution.exact))

    def _return(self, sent: int) -> None:
        """Called when the server is available (again).

        Args:
            sent: provisional tokens of the front answer that it has been given on this stream.
        """
        self._standalone.restart()
        job, conversation = self.answers.front, self.conversation
        asks = conversation.phase is Phase.ANSWERING and self._told.question != conversation.ask_id
        if job is not None and asks:  # the question is newer than this stream's Open
            self._send_ask(conversation.repeat(), job)
            sent = len(job.written)
        for step in self.presence.on_return(is_answering=job is not None):
            if step is Step.RETURN:
                self._standalone.renew()
                if job is not None and job.written:
                    self._drafting.adopt_written(job.written, sent)
            else:
                self._do(step)

    def _on_down(self, down: Down) -> None:
        error, front = down.error, self.answers.front
        if front is not None and not down.retrying and not isinstance(error, ProtocolError):
            self._on_refused(error)
        else:
            self._do(*self.presence.on_down(error, broke=down.broke, is_expected=front is not None))

    def _on_refused(self, error: MoaError) -> None:
        """Handles a refusal of the front answer: the current one, which the user must change, or a standalone one."""
        if self.answers.current_is_front:
            self._failure = error
            return
        self._drafting.restart()
        self._standalone.restart()
        self._ask(self.answers.on_refused(error))
        if self.answers.front is not None:
            self.connection.start()
        else:
            self._do(*self.presence.on_idle(error.message))

    # ------------------------------------------------------------ frames

    def _on_frame(self, frame: pb.ServerFrame) -> None:
        now, presence = _now_ms(), self.presence
        presence.on_frame(now, is_progress=not is_beat(frame))
        if presence.wants_offline or self._is_renewed:  # frames of a stream that will be left
            return
        if presence.is_back(now):
            if self.settings.reconcile == "keep" and self._has_provisional:
                presence.replace_stream()  # the server has continued differently in this one
                return
            self._return(0)
        for message in read_frame(frame):
            match message:
                case Verdict():
                    self._on_verdict(message, now)
                case Memory():
                    self._on_memory(message, now)
                case Beat():
                    self._on_beat(message, now)
                case _:
                    reason = message.reason or "it is shutting down"
                    presence.error = UnavailableError(f"The server is going away: {reason}.")

    def _on_beat(self, beat: Beat, now: float) -> None:
        took = self.presence.monitor.on_beat(now, beat.stamp)
        if took is None:
            return
        self._drafting.window.rtt_ms.add(took)
        if (step_ms := self.plain_step_ms) is not None:
            self._do(*self.presence.grade(step_ms))

    def _on_verdict(self, verdict: Verdict, now: float) -> None:
        if verdict.finish is Finish.DRAINING:
            verdict = replace(verdict, finish=Finish.UNFINISHED)  # the server ends, not the answer
        progress = self._drafting.on_verdict(now, verdict)
        if progress.tokens:
            if self.answers.current_is_front:  # others belong to an earlier answer
                self.figures.on_verdict(progress, verdict)
            self.answers.on_committed(progress.tokens)
            self._tell_drafter(self.conversation.tokens, self.conversation.hashes)
            codec = self._memory.on_verdict(now, len(progress.tokens), len(self.conversation.tokens))
            if codec is not None:
                self._sender.set_codec(codec)
        if progress.finish is not Finish.UNFINISHED:
            self._ask(self.answers.on_finished(progress.finish))
        if not self._has_provisional:
            self._do(*self.presence.on_verified())

    def _on_memory(self, memory: Memory, now: float) -> None:
        taken = self._memory.on_memory(now, memory, self.conversation.hashes)
        if taken:
            self._sender.credit(taken)

    @property
    def _has_provisional(self) -> bool:
        """Whether provisional text of the front answer is shown."""
        job = self.answers.front
        return job is not None and bool(job.written)

    # ------------------------------------------------------------ the drafter

    def _tell_drafter(self, text: Sequence[int], hashes: PrefixHashes | None = None) -> None:
        """Gives the drafter the text; memory rows of what it must forget are dropped too."""
        if self._thread is not None:
            self._memory.crop(self._thread.tell(text, hashes))

    def _on_fault(self, error: Exception) -> None:
        """Handles a failed drafter: unreadable memory is the server's fault, everything else ours."""
        if isinstance(error, ProtocolError):
            raise error
        self._failure = error if isinstance(error, MoaError) else _defect(error)


def _now_ms() -> float:
    return 1e3 * time.monotonic()


def _defect(error: Exception) -> MoaError:
    told = InternalError(f"The drafter has failed ({type(error).__name__}).")
    told.__cause__ = error
    return told

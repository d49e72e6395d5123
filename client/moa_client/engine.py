"""One conversation with a server: asks, drafts, commits what the server decides, and continues when the link is lost.

State: the answers over the pure `Conversation`, the connection, the drafter on its thread, and whether the server is
believed available. One loop handles one thing at a time, from one inbox; nothing in it waits for peer or torch.
Invariants: committed text is the target's; standalone text is provisional until the server has decided it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import InternalError, MoaError, ProtocolError, UnavailableError
from moa_shared.protocol.codec import Codec
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.frames import ask_to_proto, draft_to_proto, memory_from_proto, verdict_from_proto
from moa_shared.protocol.messages import Ack, Ask, Draft, Memory, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.protocol.wire import PROTOCOL_VERSION

from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.events import Event, ExecutionChanged, LinkChanged, LinkState
from moa_client.conversation.figures import Figures
from moa_client.conversation.jobs import Job, Turn
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import Drafted, DrafterThread, Fault, Grown, Wrote
from moa_client.drafting.online import OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.link.channel import Link
from moa_client.link.connection import Came, Connection, Down, Up
from moa_client.link.monitor import LinkMonitor
from moa_client.memory.plan import MemoryPlan

SILENT_STREAM_MS = 500.0  # a stream silent for this long beyond the timer is replaced
SLOW_STEPS, GOOD_STEPS = (
    4.0,
    3.0,
)  # of a round trip, to become slow and to become good again; apart to avoid flicker


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """The state for a status line; figures are those of the newest answer."""

    state: LinkState
    rtt_ms: float | None
    tokens_per_s: float
    acceptance: float
    up_bytes: int
    down_bytes: int


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
        self.figures = Figures()
        self.state = LinkState.OFFLINE if offline else LinkState.GOOD
        self.monitor = LinkMonitor(1e3 * link.silence_seconds)
        self._codec = codec
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self.connection = Connection(link, self._make_open, self._inbox.put_nowait)
        self._fit(device)
        self._next_device: Device | None = None
        self.answers = AnswerQueue(self.conversation, device.end_rule)
        self._forced_offline = offline
        self._alone = offline
        self._cannot_write = False  # the drafter has nothing to say on its own
        self._serial = 0  # of the provisional text
        self._told_of: tuple[int, Job] | None = None  # the serial and the job whose beginning the drafter has
        self._lost_since: float | None = None
        self._last_error: MoaError | None = None
        self._failure: MoaError | None = None
        self._opened_with = 0  # provisional tokens in the newest Open
        self._resume_token = b""
        self._renewed = False  # the conversation was started again: the server's session is no longer usable
        self._stopping = False  # the user wants the current answer to end, and has not seen it end
        self._stop_sent = (0, 0)  # the stream and the question for which the server was told to stop
        self._told_ask = 0  # id of the newest question sent on this stream
        self._must_reopen = False

    # ------------------------------------------------------------ for the surfaces

    @property
    def status(self) -> LinkStatus:
        """The current state."""
        figures = self.figures
        acceptance = figures.accepted / figures.tokens if figures.tokens else 0.0
        return LinkStatus(
            self.state, self.monitor.rtt_ms, figures.tokens_per_second, acceptance, figures.up_bytes, figures.down_bytes
        )

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
        self._stopping, self._failure, self._last_error, self._cannot_write = False, None, None, False
        self._serial += 1
        if self._renewed:
            await self.connection.leave()
            self._empty_inbox()  # of frames about the previous conversation
            self._resume_token, self._renewed = b"", False
            self._memory.restart()
        if self._next_device is not None and self.answers.front is None:
            await self._refit(self._next_device)
        while not self._inbox.empty():  # what has happened since the last answer
            self._on_item(self._inbox.get_nowait())
        fixed = turn
        begun = self.answers.begin(turn if callable(turn) else lambda _: fixed, settings)  # type: ignore[arg-type,return-value]
        job = self.answers.current
        try:
            self._ask(begun)
            if not self._forced_offline:
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
        connection = self.connection
        async for event in self._run(
            lambda: self.answers.front is None or not (connection.is_up or connection.is_trying) or self._forced_offline
        ):
            yield event

    def change_device(self, device: Device) -> None:
        """Uses another device from the next question on that has nothing unverified before it."""
        self._next_device = device

    @property
    def plain_step_ms(self) -> float | None:
        """Time of a plain step of the server; None before one was measured."""
        step_ms = self._drafting.window.step_ms
        return step_ms.mean if step_ms.samples else None

    async def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._stopping = True
        self._inbox.put_nowait(None)

    def go_offline(self) -> None:
        """Continues without the server until `go_online`."""
        self._forced_offline = True
        self._inbox.put_nowait(None)

    def go_online(self) -> None:
        """Connects again."""
        self._forced_offline = False
        self.connection.start()
        self._inbox.put_nowait(None)

    def reset(self) -> None:
        """Starts a new conversation; the server learns of it with the next question."""
        self.answers.reset()
        self._drafting.restart()
        self._renewed = True

    async def close(self) -> None:
        """Ends the conversation at the server, and the inference thread."""
        await self.connection.leave()
        if self._thread is not None:
            self._thread.close()

    # ------------------------------------------------------------ the device

    def _fit(self, device: Device) -> None:
        """Sets up drafting with this device."""
        self._device = device
        self._thread = DrafterThread(device.drafter, self._inbox.put_nowait) if device.drafter is not None else None
        reads_memory = device.drafter is not None and device.drafter.reads_memory
        remember = self._thread.remember if self._thread is not None and reads_memory else None
        self._memory = MemoryPlan(remember, device.planes, self._codec)
        self._drafting = OnlineDrafting(
            self.settings, self.conversation, self._thread, self._memory, self._send, device.step_ms
        )

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
        while not self._inbox.empty():
            self._inbox.get_nowait()

    # ------------------------------------------------------------ questions

    def _ask(self, ask: Ask | None) -> None:
        """Sends the question that is now the conversation's to the server, if there is one."""
        job = self.answers.front
        if ask is None or job is None:
            return
        self._drafting.on_asked()
        if self.connection.is_up and not self._alone:
            self._send_ask(ask, job)

    def _send_ask(self, ask: Ask, job: Job) -> None:
        self._told_ask = ask.id
        self.connection.send(ask=ask_to_proto(replace(ask, provisional=self._drafting.propose_written(job.written))))
        self._drafting.on_told()

    def _send(self, message: Draft | Ack) -> None:
        if isinstance(message, Draft):
            self.connection.send(draft=draft_to_proto(message))
        else:
            self.connection.send(ack=pb.Ack(committed=message.committed))

    def _forget_current(self) -> None:
        """Abandons the current answer."""
        self.answers.forget_current()
        self._drafting.restart()
        self._serial += 1

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
                self.monitor.rest()
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
        if isinstance(item, Came):
            try:
                self._on_frame(item.frame)
            except ProtocolError as error:
                self._distrust(error)
        elif isinstance(item, Up):
            self._on_up(item)
        elif isinstance(item, Down):
            self._on_down(item)
        elif isinstance(item, Grown):
            self._drafting.on_grown(_now_ms(), item)
        elif isinstance(item, Drafted):
            if not self._alone:
                self._drafting.on_round(item)
        elif isinstance(item, Wrote):
            self._on_wrote(item)
        elif isinstance(item, Fault):
            self._on_fault(item.error)

    def _wake_ms(self) -> float | None:
        """When to check again if nothing happens."""
        times = []
        is_up = self.connection.is_up
        if (monitor := self.monitor.wake_ms(can_beat=is_up)) is not None and is_up | (not self._alone):
            times.append(monitor + (SILENT_STREAM_MS if self._alone else 0.0))
        if self._memory.hold_until_ms > _now_ms():
            times.append(self._memory.hold_until_ms)
        waits = self._alone and self.answers.current is not None and not self._writes_alone
        if self._lost_since is not None and waits:
            times.append(self._lost_since + 1e3 * self.connection.link.silence_seconds)
        return min(times, default=None)

    async def _advance(self) -> None:
        """Does what is due now: beats, timers, drafting, frames."""
        now = _now_ms()
        if self._forced_offline and self.connection.is_up | self.connection.is_trying:
            await self.connection.drop()
            self._go_alone("as you wished")
        if self.answers.front is not None:
            self.monitor.expect(now)
        else:
            self.monitor.rest()
        if self.connection.is_up and (stamp := self.monitor.take_beat(now)) is not None:
            self.connection.send(beat=pb.Beat(stamp=stamp))
        if not self._alone and self.monitor.is_lost(now):
            self._go_alone("the server is silent")
        stuck = self.connection.is_up and self.monitor.is_stuck(now)
        if not self._alone and stuck:
            self._go_alone("the server is there but does not get on")
        lost = self._alone and self.connection.is_up and self.monitor.is_lost(now - SILENT_STREAM_MS)
        if lost or self._must_reopen:
            self._must_reopen = False
            self.connection.rtt_ms = self.monitor.rtt_ms or 0.0
            await self.connection.lose()
        self._check_patience(now)
        if self._stopping and self.answers.current is not None:
            await self._stop_now()
        if self._alone:
            self._write_on()
            if stuck or not self.connection.is_up:  # a stream that is only silent may recover
                self.answers.end_alone()
        elif self.connection.is_up:
            self._drafting.draft_on(now)

    def _check_patience(self, now: float) -> None:
        """Limits how long a device that cannot continue on its own waits for the server."""
        if self._writes_alone or self.answers.current is None:
            self._lost_since = None
            return
        if not self._alone:
            return  # an open stream that has brought nothing yet does not count as progress
        if self._lost_since is None:
            self._lost_since = now
        seconds = self.connection.link.silence_seconds
        stuck = self.connection.is_up and self.monitor.is_stuck(now)
        if self._forced_offline:
            self._failure = self._last_error or UnavailableError(
                "Without a server this device cannot answer.", hint="/online connects again."
            )
        elif stuck or now >= self._lost_since + 1e3 * seconds:
            self._failure = self._last_error or UnavailableError(
                f"The server has sent nothing for {seconds:g} s.", hint="Ask again, or try another server."
            )

    async def _stop_now(self) -> None:
        """Ends the answer here for the user: tells the server, once on each stream, until it has ended it.

        A standalone answer ends at once; later frames about it must not be handled, so the stream is left.
        """
        connection = self.connection
        if not self._alone and self.answers.current_is_front:
            ask = self.conversation.ask_id
            if connection.is_up and self._stop_sent != (connection.stream_number, ask):
                self._stop_sent = (connection.stream_number, ask)
                connection.send(stop=pb.Stop(base=self.conversation.answer_length, ask=ask))
            return
        self._stopping = False
        self._serial += 1
        server_knows = self.answers.current_is_front
        self.answers.stop()
        if server_knows and connection.is_up | connection.is_trying:
            await connection.lose()

    # ------------------------------------------------------------ the stream

    def _make_open(self) -> pb.Open:
        """The handshake with the current state of everything."""
        device, conversation = self._device, self.conversation
        self.connection.rtt_ms = self.monitor.rtt_ms or 0.0
        if self.settings.reconcile == "keep" and self._alone:
            self.answers.keep()
            self._serial += 1  # what the drafter is writing now continues text that is being committed
            self._inbox.put_nowait(None)
        job = self.answers.front
        ask = None
        self._opened_with = self._told_ask = 0
        if job is not None and conversation.phase is Phase.ANSWERING:
            resumed = conversation.resume()
            ask = ask_to_proto(replace(resumed, provisional=self._drafting.propose_written(job.written)))
            self._told_ask = ask.id
            self._opened_with = len(job.written)
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=device.identity,
            codecs=self._memory.offered,  # type: ignore[arg-type]
            resume_token=self._resume_token,
            tokens=conversation.tokens,
            reused_state=device.state_width > 0,
            run_ahead=device.drafter is None or self.settings.server_runs_ahead,
            memory_from=self._memory.first_missing(len(conversation.tokens)),
            ask=ask,
        )

    def _on_up(self, up: Up) -> None:
        now = _now_ms()
        opened = up.opened
        try:
            self._memory.on_opened(opened.codec)
        except ProtocolError as error:
            self._distrust(error)
            return
        if opened.HasField("new_execution"):
            self._change_execution(opened)
        self._resume_token = opened.resume_token
        self._drafting.on_told()
        self.monitor.on_opened(now, up.took_ms)
        self._drafting.window.rtt_ms.add(up.took_ms)
        self._last_error = None
        if self._thread is not None and self.conversation.tokens:
            self._tell_drafter(self._thread, self.conversation.tokens, self.conversation.hashes)
        self._return()

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

    def _return(self) -> None:
        """Called when the server is available (again)."""
        was_alone, self._alone = self._alone, False
        self._serial += 1
        job = self.answers.front
        asks = job is not None and self.conversation.phase is Phase.ANSWERING
        if job is not None and asks and self._told_ask != self.conversation.ask_id:
            self._send_ask(self.conversation.repeat(), job)  # asked since this stream's Open was made
            self._opened_with = len(job.written)
        if not was_alone:
            if self.state is LinkState.OFFLINE:
                self._change(LinkState.GOOD)
            return
        self._cannot_write = False
        if job is not None and job.written:
            if self._opened_with == 0:
                self._drafting.propose_written(job.written)
                self._drafting.streamed.adopt(0)  # the same stream continues: the server has seen none of it
            elif len(job.written) > self._opened_with:
                self.conversation.extend(job.written[self._opened_with :])
        self._change(LinkState.GOOD if job is None else LinkState.BACK)

    def _on_down(self, down: Down) -> None:
        self._last_error = down.error
        if isinstance(down.error, ProtocolError):
            self._distrust(down.error)
        elif not down.retrying and self.answers.front is not None:
            self._on_refused(down.error)
        elif self.answers.front is None:
            self._change(LinkState.OFFLINE, down.error.message)  # the next question tries to connect first
        elif not down.broke:  # a stream that broke is reopened at once; the timer keeps running
            self._go_alone(down.error.message)

    def _on_refused(self, error: MoaError) -> None:
        """Handles a refusal of the front answer: the current one, which the user must change, or a standalone one."""
        if self.answers.current_is_front:
            self._failure = error
            return
        self._last_error = None
        self._drafting.restart()
        self._serial += 1
        self._ask(self.answers.on_refused(error))
        if self.answers.front is not None:
            self.connection.start()
        else:
            self._change(LinkState.OFFLINE, error.message)

    def _distrust(self, error: ProtocolError) -> None:
        """Handles a protocol violation: continues without the server, or ends the answer if that is impossible."""
        self._forced_offline = True
        self._last_error = error
        self._go_alone(error.message)

    def _on_frame(self, frame: pb.ServerFrame) -> None:
        now = _now_ms()
        self.monitor.on_frame(now)
        kind = frame.WhichOneof("frame")
        if self._forced_offline or self._renewed:  # frames of a stream that will be left
            return
        if kind != "beat":
            self.monitor.on_progress(now)
            self._lost_since = None
        if self._alone and not self.monitor.is_stuck(now):
            if self.settings.reconcile == "keep" and self._has_provisional:
                self._must_reopen = True  # the server has continued differently in this stream
                return
            self._opened_with = 0
            self._return()
        if kind == "beat":
            took = self.monitor.on_beat(now, frame.beat.stamp)
            if took is not None:
                self._drafting.window.rtt_ms.add(took)
                self._grade()
        elif kind == "verdict":
            self._on_verdict(verdict_from_proto(frame.verdict), now)
            if frame.verdict.HasField("memory"):
                self._on_memory(memory_from_proto(frame.verdict.memory), now)
        elif kind == "memory":
            self._on_memory(memory_from_proto(frame.memory), now)
        elif kind == "go_away":
            self._last_error = UnavailableError(
                f"The server is going away: {frame.go_away.reason or 'it is shutting down'}."
            )

    def _on_verdict(self, verdict: Verdict, now: float) -> None:
        if verdict.finish is Finish.DRAINING:
            verdict = replace(verdict, finish=Finish.UNFINISHED)  # the server ends, not the answer
        progress = self._drafting.on_verdict(now, verdict)
        if progress.tokens:
            if self.answers.current_is_front:  # others belong to an earlier answer
                self.figures.on_verdict(progress, verdict)
            self.answers.on_committed(progress.tokens)
            if self._thread is not None:
                self._tell_drafter(self._thread, self.conversation.tokens, self.conversation.hashes)
            codec = self._memory.on_verdict(now, len(progress.tokens), len(self.conversation.tokens))
            if codec is not None:
                self.connection.send(set_codec=pb.SetCodec(codec=codec.value))  # type: ignore[arg-type]
        if progress.finish is not Finish.UNFINISHED:
            self._ask(self.answers.on_finished(progress.finish))
        if self.state is LinkState.BACK and not self._has_provisional:
            self._change(LinkState.GOOD)

    def _on_memory(self, memory: Memory, now: float) -> None:
        taken = self._memory.on_memory(now, memory, self.conversation.hashes)
        if taken:
            self.connection.send(credit=pb.Credit(bytes=taken))

    @property
    def _has_provisional(self) -> bool:
        """Whether provisional text of the front answer is shown."""
        job = self.answers.front
        return job is not None and bool(job.written)

    def _tell_drafter(self, thread: DrafterThread, text: Sequence[int], hashes: PrefixHashes | None = None) -> None:
        """Gives the drafter the text; memory rows of what it must forget are dropped too."""
        self._memory.crop(thread.tell(text, hashes))

    # ------------------------------------------------------------ standalone text

    @property
    def _writes_alone(self) -> bool:
        """Whether the device can continue on its own."""
        return self._thread is not None and not self._cannot_write

    def _go_alone(self, reason: str) -> None:
        if not self._alone:
            self._alone = True
            self._serial += 1
            self._drafting.restart()
            if self._writes_alone and not self._stopping:
                self.answers.go_alone()
        self._change(LinkState.OFFLINE, reason)

    def _write_on(self) -> None:
        """Lets the drafter write the next token of the current answer."""
        job, thread = self.answers.current, self._thread
        if job is None or job.has_ended or thread is None or self._cannot_write or thread.busy:
            return
        if self._told_of != (self._serial, job):  # it knows what it writes itself
            self._told_of = self._serial, job
            self._tell_drafter(thread, self.answers.text_before(job))
        thread.write(self._serial, job.written, job.settings.sampling)

    def _on_wrote(self, wrote: Wrote) -> None:
        job = self.answers.current
        if job is None or job.has_ended or wrote.serial != self._serial or not self._alone:
            return
        if wrote.token is None:
            self._cannot_write = True
            return
        self.answers.write(job, [wrote.token])

    def _on_fault(self, error: Exception) -> None:
        """Handles a failed drafter: unreadable memory is the server's fault, everything else ours."""
        if isinstance(error, ProtocolError):
            self._distrust(error)
        else:
            self._failure = error if isinstance(error, MoaError) else _defect(error)

    # ------------------------------------------------------------ small methods

    def _grade(self) -> None:
        """Grades the link good or slow by how many steps of the server a round trip takes."""
        rtt_ms, step_ms = self.monitor.rtt_ms, self._drafting.window.step_ms
        if rtt_ms is None or not step_ms.samples:
            return
        if self.state is LinkState.GOOD and rtt_ms > SLOW_STEPS * step_ms.mean:
            self._change(LinkState.SLOW)
        elif self.state is LinkState.SLOW and rtt_ms < GOOD_STEPS * step_ms.mean:
            self._change(LinkState.GOOD)

    def _change(self, state: LinkState, reason: str = "") -> None:
        if state is not self.state:
            self.state = state
            self.answers.events.append(LinkChanged(state, reason))


def _now_ms() -> float:
    return 1e3 * time.monotonic()


def _defect(error: Exception) -> MoaError:
    told = InternalError(f"The drafter has failed ({type(error).__name__}).")
    told.__cause__ = error
    return told

"""One conversation with a server: asks, drafts, commits what the server decides, and continues when the link is lost.

State: the answers over the pure `Conversation`, the connection, whether a server is present, and the drafter on its
thread. One loop handles one thing at a time, from one inbox; nothing in it waits for a peer or for the drafter.
Invariants: committed text is the target's; standalone text is provisional until the server has decided it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

from moa_shared.errors import InternalError, MismatchError, MoaError, ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from moa_client.conversation.answer_figures import Figures, LinkStatus, SessionFigures
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Conversation, ConversationState
from moa_client.conversation.events import Event, LinkState
from moa_client.conversation.jobs import Turn
from moa_client.device.loading import Device
from moa_client.drafting.device_drafting import DeviceDrafting
from moa_client.drafting.inference_thread import InferenceThread
from moa_client.drafting.results import DraftCompleted, DrafterFailed, DraftExtended, TokenWritten
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.answer_trace import AnswerTrace
from moa_client.engine.exchange import Exchange, now_ms
from moa_client.engine.replaced_server import (
    DrafterReady,
    DrafterUnusable,
    NoAnswer,
    OtherModel,
    Refit,
    ReplacedServer,
    SameModel,
)
from moa_client.link.availability import Availability, GiveUp, LinkStep, SendBeat, Steps
from moa_client.link.connection import FrameReceived, ServerConnection, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb


class ClientEngine:
    """A conversation over one link.

    Args:
        link: to the server, or to several; other conversations may use it too.
        device: what this client holds.
        vocab_size: of the target.
        codec: the best one for memory; cheaper ones are also offered.
        offline: do not connect before `go_online`.
        refit: gets a drafter for a server that has another one than before; None: the conversation continues without.
        thread: that drafters of several conversations share; None: one of its own.
    """

    def __init__(
        self,
        link: Fleet,
        device: Device,
        vocab_size: int,
        codec: Codec,
        settings: DraftingSettings | None = None,
        *,
        offline: bool = False,
        refit: Refit | None = None,
        thread: InferenceThread | None = None,
    ) -> None:
        self.conversation = Conversation(vocab_size)
        self.answers = AnswerQueue(self.conversation, device.end_rule)
        settings = settings or DraftingSettings()
        self._alone = settings.alone
        self._silence_ms = 1e3 * link.silence_seconds
        self.presence = Availability(self._silence_ms, settings.alone.end_ms, offline=offline)
        self._inbox: asyncio.Queue[object] = asyncio.Queue()
        self.connection = ServerConnection(link, self._make_open, self._inbox.put_nowait, self.conversation.hashes)
        self._exchange = Exchange(
            self.answers,
            self.presence,
            self.connection,
            device,
            settings,
            codec,
            self._inbox.put_nowait,
            thread,
        )
        self._next_device: Device | None = None
        self._replaced = ReplacedServer(
            self._exchange, self.presence, self.connection, self._inbox.put_nowait, self.change_device, refit
        )
        self._began = time.monotonic()  # the newest question
        self._trace: AnswerTrace | None = None  # of the running answer
        self._is_stopping = False  # the user wants the current answer to end, and has not seen it end
        self._is_renewed = False  # the conversation was started again or rewound: the stream is about another one

    # ------------------------------------------------------------ for the surfaces

    @property
    def figures(self) -> Figures:
        """What the newest answer cost so far."""
        return self._exchange.figures.newest

    @property
    def session_figures(self) -> SessionFigures:
        """The same, and what was written without a server in this session."""
        return self._exchange.figures

    @property
    def state(self) -> LinkState:
        """The state of the link."""
        return self.presence.state

    @property
    def status(self) -> LinkStatus:
        """The state for a status line."""
        server = self.connection.dialer.address
        return self.figures.status(self.state, self.rtt_ms, server, holds_back=self.is_holding_back)

    @property
    def rtt_ms(self) -> float | None:
        """Smoothed round-trip time; None before one was measured."""
        return self.presence.monitor.rtt_ms

    @property
    def plain_step_ms(self) -> float | None:
        """Time of a plain step of the server; None before one was measured."""
        step_ms = self._drafting.online.window.step_ms
        return step_ms.mean if step_ms.samples else None

    @property
    def device(self) -> Device:
        """The device that drafts for the next question."""
        return self._next_device or self._exchange.device

    @property
    def unsettled(self) -> int:
        """Number of answers that ended without the server and are not verified yet."""
        return self.answers.unsettled

    async def ask(
        self, turn: Turn | Sequence[int] | None, settings: AnswerSettings, *, traceparent: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Asks for an answer; yields what happens, and last `Ended`.

        Args:
            turn: the question's tokens, or a function that makes them from the conversation before it; None: continue
                the newest answer, which has ended.
            traceparent: of the span that the answer belongs to; empty: none.

        Raises:
            MoaError: why there is no (more) answer. What arrived stays in the conversation; a question that got
                none is taken back.
        """
        traffic = self.connection.traffic
        up, down = traffic.up_bytes, traffic.down_bytes
        self._began, began_cpu = time.monotonic(), time.process_time()
        await self._catch_up()
        figures = self._exchange.figures.begin()
        self._trace, problem = AnswerTrace(traceparent), ""
        self.conversation.traceparent = self._trace.traceparent
        begun = self.answers.go_on(settings) if turn is None else self.answers.begin(_as_turn(turn), settings)
        job = self.answers.current
        try:
            self._exchange.ask(begun)
            if not self.presence.wants_offline:
                self.connection.start()
            async for event in self._run(lambda: self.answers.current is None):
                figures.up_bytes, figures.down_bytes = traffic.up_bytes - up, traffic.down_bytes - down
                figures.cpu_seconds = time.process_time() - began_cpu
                self._trace.on_event(event)
                yield event
        except MoaError as error:
            problem = error.code
            raise
        finally:
            self._trace.end(figures, problem)
            self._trace = None
            if self.answers.current is not None and self.answers.current is job:
                self.answers.forget_current()
                self._drafting.restart()
                await self.connection.drop()

    async def attend(self, is_over: Callable[[], bool] = lambda: False) -> AsyncGenerator[Event, None]:
        """Maintains the link between questions, until it is closed; yields state changes and `Settled` answers.

        Args:
            is_over: ends it; looked at when something happens, or after `wake`.
        """
        async for event in self._run(is_over):
            yield event

    async def settle(self) -> AsyncGenerator[Event, None]:
        """Verifies standalone answers while there is a server; yields `Settled` for each."""
        connection, presence = self.connection, self.presence

        def is_over() -> bool:
            has_link = connection.is_up or connection.is_trying or self._replaced.is_asking
            is_lost = not has_link and self._inbox.empty()  # what is in it may open another stream
            return self.answers.front is None or presence.wants_offline or is_lost

        async for event in self._run(is_over):
            yield event

    def change_device(self, device: Device | None) -> None:
        """Uses another device from the next question on that has nothing unverified before it; None: keeps this one."""
        self._next_device = device

    def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._is_stopping = True
        self.wake()

    def go_offline(self) -> None:
        """Continues without the server until `go_online`."""
        self.presence.go_offline()
        self.wake()

    def go_online(self) -> None:
        """Connects again."""
        self.presence.go_online()
        self._drafting.standalone.asked_for = False
        self.connection.start()
        self.wake()

    @property
    def is_holding_back(self) -> bool:
        """Whether the device could continue the answer, but with text that is too unlikely to be right."""
        return not self.presence.is_served and self.answers.current is not None and self._drafting.standalone.is_waiting

    def write_alone(self) -> None:
        """Continues the running answer without the server, however unlikely the text is, until the server is back."""
        self._drafting.standalone.asked_for = True
        self.wake()

    def restore(self, state: ConversationState) -> None:
        """Continues a conversation that was kept; to be called before the first question.

        Answers that no server has verified are verified at the next contact, for which `attend` or `settle` waits.
        """
        self.answers.restore(state)
        self._exchange.figures.restore(state.unverified)
        if state.unverified:
            self.presence.begin_lost()
            if not self.presence.wants_offline:
                self.connection.start()

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers; the server learns of it with the next question.

        Args:
            answers: of those that are part of the conversation: a question that was taken back, and an answer that was
                refused before anything of it was committed, are not.

        Raises:
            ProtocolError: an answer is running.
        """
        if self.answers.rewind(answers):
            self._drafting.restart()
            self._is_renewed = True
        self._exchange.figures.rewind(self.answers.unsettled)

    def reset(self) -> None:
        """Starts a new conversation; the server learns of it with the next question."""
        self.answers.reset()
        self._exchange.figures.rewind(0)
        self._drafting.online.restart()
        self._is_renewed = True

    async def sleep(self) -> None:
        """Leaves the stream until the next question: the server keeps the session for a while."""
        await self.connection.drop()

    async def close(self) -> None:
        """Ends the conversation at the server, and the inference thread."""
        await self._replaced.close()
        await self.connection.leave()
        self._drafting.close()

    # ------------------------------------------------------------ between answers

    async def _catch_up(self) -> None:
        """Handles what has happened since the last answer, and makes everything ready for a new one."""
        self._is_stopping, self._exchange.failure, self.presence.error = False, None, None
        self._drafting.standalone.renew()
        if self._is_renewed:
            await self._begin_again()
        if self._next_device is not None and self.answers.front is None:
            await self._change_device(self._next_device)
        while not self._inbox.empty():
            self._on_item(self._inbox.get_nowait())
        await self._change_server()

    async def _change_server(self) -> None:
        """Leaves the stream if another server is clearly better; only between answers, since that one must read all."""
        dialer = self.connection.dialer
        if self.answers.front is None and self.connection.is_up and dialer.chooses_again():
            await self.connection.drop()
        dialer.look_around()  # for the next question

    async def _begin_again(self) -> None:
        """Leaves the stream, which is about a conversation that is no more; what remains of it is continued."""
        if self.conversation.tokens:
            await self.connection.drop()  # without goodbye: the server's session is still good for what remains
        else:
            await self.connection.leave()
            self._exchange.forget_session()
            self._drafting.memory.restart()
        self._empty_inbox()  # of frames about the previous conversation
        self._is_renewed = False

    async def _change_device(self, device: Device) -> None:
        """Leaves the stream; the next one is opened with the new drafter's fingerprint."""
        self._next_device = None
        await self.connection.drop()
        self._drafting.close()
        self._empty_inbox()
        before = self._drafting
        self._exchange.use(device)
        self._drafting.online.window.take_over(before.online.window)
        self._drafting.standalone.asked_for = before.standalone.asked_for

    def _empty_inbox(self) -> None:
        while not self._inbox.empty():
            self._inbox.get_nowait()

    # ------------------------------------------------------------ the loop

    async def _run(self, is_over: Callable[[], bool]) -> AsyncGenerator[Event, None]:
        exchange = self._exchange
        while True:
            await self._advance()
            while self.answers.events:
                event = self.answers.events.popleft()
                exchange.figures.on_event(event, time.monotonic() - self._began)
                yield event
            if exchange.failure is not None:
                failure, exchange.failure = exchange.failure, None
                raise failure
            if is_over():
                self.presence.monitor.rest()
                return
            await self._take()

    async def _take(self) -> None:
        """Waits for the next event, and handles it and those that arrived with it."""
        wake_ms = self._wake_ms()
        try:
            async with asyncio.timeout(None if wake_ms is None else max(0.0, (wake_ms - now_ms()) / 1e3)):
                item = await self._inbox.get()
        except TimeoutError:
            return
        finally:
            if wake_ms is not None:
                self.presence.monitor.on_wake(now_ms(), now_ms() - wake_ms)
        while True:
            self._on_item(item)
            if self._inbox.empty() or self.answers.events:
                return
            item = self._inbox.get_nowait()

    def _on_item(self, item: object) -> None:
        if isinstance(item, FrameReceived | StreamOpened | StreamLost) and not self.connection.accept(item):
            return
        try:
            self._dispatch(item)
        except ProtocolError as error:
            self._follow(self.presence.distrust(error))

    def _dispatch(self, item: object) -> None:
        exchange, drafting = self._exchange, self._drafting
        match item:
            case FrameReceived() if not self._is_renewed:
                exchange.on_frame(item.frame)
            case StreamOpened():
                if self._trace is not None:
                    self._trace.on_up(item)
                exchange.on_up(item)
                if self._next_device is not None and item.opened.HasField("new_execution"):
                    self._next_device = self._next_device.on_execution(item.opened)
                self._replaced.on_up(self.rtt_ms or 0.0)
            case StreamLost(error=MismatchError()):
                self._replaced.on_mismatch(item)
            case StreamLost():
                self._follow(exchange.on_down(item))
            case SameModel() | OtherModel() | NoAnswer() | DrafterReady() | DrafterUnusable():
                self._follow(self._replaced.on_told(item))
            case DraftExtended():
                drafting.online.on_grown(now_ms(), item)
            case DraftCompleted() if self.presence.is_served:
                drafting.online.on_round(item)
            case TokenWritten() if not self.presence.is_served:
                drafting.standalone.on_wrote(now_ms(), item)
            case DrafterFailed(error):
                if isinstance(error, ProtocolError):
                    raise error  # unreadable memory is the server's fault, everything else ours
                exchange.failure = error if isinstance(error, MoaError) else _defect(error)

    async def _advance(self) -> None:
        """Does what is due now: beats, timers, drafting, frames."""
        now, connection, presence = now_ms(), self.connection, self.presence
        steps = presence.tick(
            now,
            is_up=connection.is_up,
            is_trying=connection.is_trying,
            is_expected=self.answers.front is not None,
            patience_ms=self._patience_ms,
            has_other=presence.monitor.is_stuck(now) and connection.dialer.has_other,
        )
        if LinkStep.LEAVE in steps:
            self._replaced.stop_asking()
            await connection.drop()
        self._follow(steps)
        if LinkStep.REOPEN in steps:
            connection.rtt_ms = self.rtt_ms or 0.0
            if presence.monitor.is_stuck(now):
                connection.dialer.on_stalled()
            await connection.lose()
        if self._is_stopping and self.answers.current is not None:
            await self._stop_now()
        if not presence.is_served:
            self._write_alone(now)
        elif connection.is_up:
            self._drafting.online.draft_on(now)

    def _write_alone(self, now: float) -> None:
        """Continues the answer on the device, and ends it when there is no server to wait for."""
        standalone, presence = self._drafting.standalone, self.presence
        standalone.write_on(now)
        if presence.may_end_answers(now):
            self.answers.end_alone()
        if self.is_holding_back:
            is_lost = standalone.is_unread and presence.may_end_answers(now)
            if is_lost or presence.outages.has_lasted(now, self._alone.leave_ms):
                self.answers.leave_to_server()

    def _follow(self, steps: Steps) -> None:
        """Does what does not wait."""
        for step in steps:
            match step:
                case SendBeat():
                    self._exchange.beat(step.stamp)
                case GiveUp():
                    self._exchange.failure = step.error
                case LinkStep.GO_STANDALONE:
                    self._drafting.restart()
                    if not self._is_stopping:
                        self._drafting.standalone.begin()
        self._exchange.report(steps)

    def _wake_ms(self) -> float | None:
        """When to check again if nothing happens."""
        times = [self.presence.wake_ms(is_up=self.connection.is_up, patience_ms=self._patience_ms)]
        if self._drafting.memory.hold_until_ms > now_ms():
            times.append(self._drafting.memory.hold_until_ms)
        if not self.presence.is_served:
            times.append(self._drafting.standalone.wake_ms())
            if self.is_holding_back:
                times.append(self.presence.outages.reaches_ms(self._alone.leave_ms))
        return min((time for time in times if time is not None), default=None)

    def wake(self) -> None:
        """Has the loop look at what is due now."""
        self._inbox.put_nowait(None)

    async def _stop_now(self) -> None:
        """Ends the answer here for the user: tells the server, once on each stream, until it has ended it.

        A standalone answer ends at once; later frames about it must not be handled, so the stream is left.
        """
        server_knows, connection = self.answers.current_is_front, self.connection
        if server_knows and self.presence.is_served:
            self._exchange.stop()
            return
        self._is_stopping = False
        self._drafting.standalone.restart()
        self.answers.stop()
        if server_knows and (connection.is_up or connection.is_trying):
            await connection.lose()

    # ------------------------------------------------------------ small methods

    @property
    def _drafting(self) -> DeviceDrafting:
        return self._exchange.drafting

    @property
    def _patience_ms(self) -> float | None:
        """How long the user waits for an answer that this device cannot continue; None: there is no such answer.

        As long as with a device that could continue it, and holds its text back.
        """
        job, rule = self.answers.current, self._alone
        if job is None or self._drafting.standalone.can_write:
            return None
        may_begin = rule.mode == "always" or self.answers.is_read(job)
        return min(rule.leave_ms if may_begin else rule.end_ms, self._silence_ms)

    def _make_open(self, address: str) -> pb.Open:
        self.connection.rtt_ms = self.rtt_ms or 0.0
        frame = self._exchange.make_open(address)
        if self.answers.events:  # text that it has kept
            self.wake()
        return frame


def _as_turn(turn: Turn | Sequence[int]) -> Turn:
    return turn if callable(turn) else lambda _: turn


def _defect(error: Exception) -> MoaError:
    told = InternalError(f"The drafter has failed ({type(error).__name__}).")
    told.__cause__ = error
    return told

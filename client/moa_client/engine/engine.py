"""One conversation with a server: asks, drafts, commits what the server decides, and continues when the link is lost.

State: the answers over the pure `Conversation`, and what the user wishes. One loop does what is due, shows what has
happened, and handles one item of its inbox at a time; nothing in it waits for a peer or for the drafter.
Invariants: committed text is the target's; standalone text is provisional until the server has decided it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import assert_never

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError, NoFormsError, ProtocolError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from moa_client.conversation.conversation import Conversation, ConversationState, Turn
from moa_client.conversation.events import Event
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.open_answers import AnswerQueue
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import DrafterExecutor
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DrafterFailed, DraftExtended, TokenWritten
from moa_client.engine import inbox
from moa_client.engine.answer_spans import AnswerSpans
from moa_client.engine.replaced_server import Adopt, Refit, ReplacedServer
from moa_client.engine.session_exchange import SessionExchange, now_ms
from moa_client.link.availability import NOTHING, Availability, GiveUp, LinkCommand, Reaction, SendBeat
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet


class ClientEngine:
    """A conversation over one link.

    Args:
        link: to the server, or to several; other conversations may use it too.
        codec: the best one for memory; cheaper ones are also offered.
        refit: gets a drafter for a server that has another one than before; None: the conversation continues without.
        adopt: makes the device for a server's model where a companion stands in for any.
        executor: that drafters of several conversations share; None: one of its own.
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
        adopt: Adopt | None = None,
        executor: DrafterExecutor | None = None,
    ) -> None:
        settings = settings or DraftingSettings()
        self.conversation = Conversation(vocab_size)
        self.answers = AnswerQueue(self.conversation, device.end_rule)
        self.availability = Availability(
            1e3 * link.silence_seconds, settings.standalone.end_ms, offline=offline, losses=link.losses
        )
        self._inbox = inbox.Inbox()
        self._exchange = SessionExchange(
            link, self.answers, self.availability, device, settings, codec, self._inbox, executor
        )
        self.connection = self._exchange.connection
        self.session_figures = self._exchange.figures
        self._replaced = ReplacedServer(self._exchange, self._inbox, refit, adopt)
        self._asked_at = time.monotonic()  # the newest question
        self._spans: AnswerSpans | None = None  # of the running answer
        self._is_stopping = False  # the user wants the current answer to end, and has not seen it end
        self._may_write = settings.standalone.mode != "never"
        if offline:
            self._have_companion_write()

    @property
    def figures(self) -> Figures:
        return self.session_figures.newest

    @property
    def status(self) -> LinkStatus:
        server, holds_back = self.connection.dialer.server.address, self._exchange.drafting.is_holding_back
        return self.figures.status(self.availability.state, self.rtt_ms, server, holds_back=holds_back)

    @property
    def rtt_ms(self) -> float | None:
        """Smoothed round-trip time; None before one was measured."""
        return self.availability.monitor.rtt_ms

    @property
    def plain_step_ms(self) -> float | None:
        """Time of a plain step of the server; None before one was measured."""
        step_ms = self._exchange.drafting.online.window.step_ms
        return step_ms.mean if step_ms.samples else None

    @property
    def device(self) -> Device:
        return self._exchange.next_device or self._exchange.device

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
        """
        traffic = self.connection.traffic
        up, down = traffic.up_bytes, traffic.down_bytes
        self._asked_at, began_cpu = time.monotonic(), time.process_time()
        await self._catch_up(settings)
        figures = self.session_figures.begin()
        self._spans, problem = AnswerSpans(traceparent), ""
        self.conversation.traceparent = self._spans.traceparent
        begun = (
            self.answers.go_on(settings)
            if turn is None
            else self.answers.begin(turn if callable(turn) else lambda _: turn, settings)
        )
        job = self.answers.current
        try:
            self._exchange.ask(begun)
            self._exchange.connect()
            async for event in self.attend(lambda: self.answers.current is None):
                figures.up_bytes, figures.down_bytes = traffic.up_bytes - up, traffic.down_bytes - down
                figures.cpu_seconds = time.process_time() - began_cpu
                self._spans.on_event(event)
                yield event
        except MoaError as error:
            problem = error.code
            raise
        finally:
            self._spans.end(figures, problem)
            self._spans = None
            if self.answers.current is not None and self.answers.current is job:
                self.answers.forget_current()
                self._exchange.drafting.restart()
                await self.connection.drop()

    async def settle(self) -> AsyncGenerator[Event, None]:
        """Verifies standalone answers while there is a server; yields `Settled` for each."""

        def is_over() -> bool:
            may_have_link = self.connection.is_up or self.connection.is_trying or self._replaced.is_asking
            may_have_link |= not self._inbox.is_empty  # what is in it may open another stream
            return self.answers.front is None or self.availability.wants_offline or not may_have_link

        async for event in self.attend(is_over):
            yield event

    async def attend(self, is_over: Callable[[], bool] = lambda: False) -> AsyncGenerator[Event, None]:
        """Maintains the link, until it is closed; yields what happens: between questions, state changes and `Settled`.

        `is_over`: ends it; looked at when something happens, or after `wake`.
        """
        while True:
            await self._advance()
            while self.answers.events:
                event = self.answers.events.popleft()
                self.session_figures.on_event(event, time.monotonic() - self._asked_at)
                yield event
            if self._exchange.failure is not None:
                failure, self._exchange.failure = self._exchange.failure, None
                raise failure
            if is_over():
                self.availability.monitor.rest()
                return
            await self._wait()

    async def _advance(self) -> None:
        """Does what is due now: beats, timers, the user's wish to stop, drafting."""
        now = now_ms()
        await self._follow(self._exchange.tick(now), now)
        if self._is_stopping and self.answers.current is not None and await self._exchange.stop():
            self._is_stopping = False
        self._exchange.draft_on(now)

    async def _wait(self) -> None:
        """Waits until something happens or is due; handles it and what has happened with it."""
        wake_ms = self._exchange.wake_ms(now_ms())
        item = await self._inbox.take(None if wake_ms is None else max(0.0, (wake_ms - now_ms()) / 1e3))
        if wake_ms is not None:
            self.availability.monitor.on_wake(now_ms(), now_ms() - wake_ms)
        while item is not None:
            await self._handle(item)
            item = None if self.answers.events else self._inbox.take_now()

    async def _handle(self, item: inbox.InboxItem) -> None:
        if isinstance(item, FrameReceived | StreamOpened | StreamLost) and not self.connection.accept(item):
            return
        exchange, reaction = self._exchange, NOTHING
        try:
            match item:
                case FrameReceived():
                    exchange.on_server_frame(item.frame)
                case StreamOpened():
                    if self._spans is not None:
                        self._spans.on_opened(item)
                    exchange.on_opened(item)
                    self._replaced.on_opened(self.rtt_ms or 0.0)
                case StreamLost(error=MismatchError()):
                    self._replaced.on_mismatch(item)
                case StreamLost():
                    reaction = exchange.on_lost(item)
                case DraftExtended():
                    exchange.on_extended(item)
                case DraftCompleted():
                    exchange.on_completed(item)
                case TokenWritten():
                    exchange.on_written(item)
                case DrafterFailed():
                    exchange.on_drafter_failed(item)
                case (
                    inbox.SameModel()
                    | inbox.TargetKnown()
                    | inbox.OtherModel()
                    | inbox.NoAnswer()
                    | inbox.DrafterReady()
                    | inbox.DrafterUnusable()
                ):
                    reaction = self._replaced.on_finding(item)
                case inbox.Wake():
                    pass
                case _:
                    assert_never(item)
        except ProtocolError as error:
            reaction = self.availability.distrust(error)
        except NoFormsError as error:
            reaction = exchange.on_refused(error)
        await self._follow(reaction, now_ms())

    async def _follow(self, reaction: Reaction, now: float) -> None:
        for command in reaction.commands:
            match command:
                case SendBeat():
                    self.connection.queue_frame(pb.ClientFrame(beat=pb.Beat(stamp=command.stamp)))
                case GiveUp():
                    self._exchange.failure = command.error
                case LinkCommand.LEAVE:
                    self._replaced.stop_asking()
                    await self.connection.drop()
                case LinkCommand.REOPEN:
                    await self._exchange.reopen(now)
                case LinkCommand.GO_STANDALONE:
                    self._exchange.drafting.restart()
                    if not self._is_stopping:
                        self._exchange.drafting.standalone.begin()
                case _:
                    assert_never(command)
        self.answers.events += reaction.events

    def wake(self) -> None:
        """Has the loop look at what is due now."""
        self._inbox.post(inbox.Wake())

    def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._is_stopping = True
        self.wake()

    def go_offline(self) -> None:
        """Continues without the server until `go_online`."""
        self.availability.go_offline()
        self._have_companion_write()
        self.wake()

    def go_online(self) -> None:
        self.availability.go_online()
        self._exchange.drafting.standalone.asked_for = False
        self.connection.start()
        self.wake()

    def write_standalone(self) -> None:
        """Continues the running answer without the server, however unlikely the text is, until the server is back."""
        self._exchange.drafting.standalone.asked_for = True
        self.wake()

    def _have_companion_write(self) -> None:
        """Who wants no server has nothing to wait for where a companion answers."""
        if self._exchange.device.companion is not None and self._may_write:
            self._exchange.drafting.standalone.asked_for = True

    def change_device(self, device: Device | None) -> None:
        """Uses another device from the next question on that has nothing unverified before it; None: keeps this one."""
        self._exchange.next_device = device

    def restore(self, state: ConversationState) -> None:
        """Continues a conversation that was kept; to be called before the first question.

        Answers that no server has verified are verified at the next contact, for which `attend` or `settle` waits.
        """
        self.answers.restore(state)
        self.session_figures.restore(state.unverified)
        if state.unverified:
            self.availability.begin_lost()
            self._exchange.connect()

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers, 0 to begin again; the server learns of it with the next question.

        Args:
            answers: of those that are part of the conversation: a question that was taken back, and an answer that was
                refused before anything of it was committed, are not.
        """
        if self.answers.rewind(answers):
            self._exchange.drafting.restart()
            self._exchange.is_outdated = True
        self.session_figures.rewind(self.answers.unsettled)

    def keep(self, turn: Turn, settings: AnswerSettings) -> Sequence[Event]:
        """Has the newest answer be again what it was before a server has corrected it, unverified; what happens."""
        if (withdrawn := self.answers.withdrawn) is None:
            raise ProtocolError("an answer that was corrected", "none")
        self.rewind(withdrawn.turns - 1)
        self.answers.begin(turn, settings)
        self.answers.keep(withdrawn)
        events = list(self.answers.events)
        self.answers.events.clear()
        return events

    async def sleep(self) -> None:
        """Leaves the stream until the next question: the server keeps the session for a while."""
        await self.connection.drop()

    async def close(self) -> None:
        await self._replaced.close()
        await self.connection.leave()
        self._exchange.drafting.close()

    async def _catch_up(self, settings: AnswerSettings) -> None:
        """Handles what has happened since the last answer, and makes everything ready for one with these settings."""
        exchange = self._exchange
        self._is_stopping, exchange.failure, self.availability.error = False, None, None
        exchange.drafting.standalone.renew()
        await exchange.leave_outdated()
        if self.answers.front is None:
            await exchange.change_device()
        while (item := self._inbox.take_now()) is not None:
            await self._handle(item)
        self.connection.dialer.look_around()  # for the next question

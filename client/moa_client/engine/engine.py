"""One conversation with a server: asks, drafts, commits what the server decides, and continues when the link is lost.

State: the answers over the pure `Conversation`, and what the user wishes. One loop does what is due, shows what has
happened, and handles one item of its inbox at a time; nothing in it waits for a peer or for the drafter.
Invariants: committed text is the target's; standalone text is provisional until the server has decided it.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import assert_never

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, MoaError, NoFormsError, ProtocolError
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings

from moa_client.conversation.conversation import Conversation, ConversationState, Turn
from moa_client.conversation.events import Committed, Event, Provisional
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.device.loading import Device
from moa_client.drafting.drafter_thread import DrafterExecutor, TokenWritten
from moa_client.drafting.online import DraftExtended
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.conversation_device import ConversationDevice
from moa_client.engine.replaced_server import Adopt, Refit, ReplacedServer
from moa_client.engine.resuming import Inbox, InboxItem, ServerSession, now_ms, taken
from moa_client.link.availability import NOTHING, Availability, GiveUp, LinkCommand, Reaction, SendBeat
from moa_client.link.connection import FrameReceived, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet


class ClientEngine:
    """A conversation over one link to a server, or to several, which other conversations may use too.

    `executor`: that drafters of several conversations share; None: one of its own. `refit`, `adopt`: see
    `ReplacedServer`.
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
        self.answers = answers = OpenAnswers(self.conversation, device.target.end_rule)
        self.availability = availability = Availability(
            1e3 * link.silence_seconds, settings.standalone.end_ms, offline=offline, losses=link.losses
        )
        self._inbox = inbox = Inbox()
        self.own = ConversationDevice(device, codec, settings, answers, availability, inbox.put_nowait, executor)
        self._session = ServerSession(link, answers, availability, self.own, settings, inbox)
        self.connection = self._session.connection
        self._replaced = ReplacedServer(self._session, refit, adopt)
        self._failure: MoaError | None = None  # that ends the answer
        self._is_stopping = False  # the user wants the current answer to end, and has not seen it end
        self._may_write = settings.standalone.mode != "never"
        if offline:
            self.go_offline()

    @property
    def figures(self) -> Figures:
        return self.answers.figures

    @property
    def status(self) -> LinkStatus:
        server, holds_back = self.connection.dialer.server.address, self.own.drafting.is_holding_back
        state, rtt_ms = self.availability.state, self.availability.monitor.rtt_ms
        return self.figures.status(state, rtt_ms, server, holds_back=holds_back)

    @property
    def device(self) -> Device:
        return self.own.next or self.own.device

    async def ask(
        self, turn: Turn | Sequence[int] | None, settings: AnswerSettings, *, traceparent: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Asks for an answer; yields what happens, and last `Ended`.

        `turn`: the question's tokens, or what makes them from the conversation before it; None: continue the newest
        answer, which has ended. `traceparent`: of the span that the answer belongs to; empty: none.
        """
        traffic = self.connection.traffic
        up, down = traffic.up_bytes, traffic.down_bytes
        began, began_cpu = time.monotonic(), time.process_time()
        await self._catch_up()
        self.conversation.traceparent = traceparent
        asked = turn if turn is None or callable(turn) else lambda _, question=turn: question
        begun = self.answers.begin(asked, settings)
        answer, figures = self.answers.current, self.figures
        try:
            self._session.ask(begun)
            self._session.connect()
            async for event in self.attend(lambda: self.answers.current is None):
                figures.up_bytes, figures.down_bytes = traffic.up_bytes - up, traffic.down_bytes - down
                if isinstance(event, Committed | Provisional):
                    figures.seconds = time.monotonic() - began
                    figures.first_token_seconds = figures.first_token_seconds or figures.seconds
                else:  # asking for it takes longer than all else here
                    figures.cpu_seconds = time.process_time() - began_cpu
                yield event
        finally:
            if self.answers.current is not None and self.answers.current is answer:
                self.answers.forget_current()
                self.own.drafting.restart()
                await self.connection.drop()

    async def attend(self, is_over: Callable[[], bool] = lambda: False) -> AsyncGenerator[Event, None]:
        """Maintains the link, until it is closed; yields what happens: between questions, state changes and `Settled`.

        `is_over`: ends it; looked at when something happens, or after `wake`.
        """
        while True:
            await self._advance()
            while self.answers.events:
                yield self.answers.events.popleft()
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if is_over():
                self.availability.monitor.rest()
                return
            await self._wait()

    async def _advance(self) -> None:
        """Does what is due now: beats, timers, the user's wish to stop, drafting."""
        now, drafting = now_ms(), self.own.drafting
        await self._follow(self._session.tick(now))
        if self._is_stopping and self.answers.current is not None and await self._session.stop():
            self._is_stopping = False
        if not self.availability.is_served:
            drafting.write_on(now)
        elif self.connection.is_up:
            for message in drafting.online.draft_on(now):
                self.connection.send_draft(message)

    async def _wait(self) -> None:
        """Waits until something happens or is due; handles it and what has happened with it."""
        now, drafting, availability = now_ms(), self.own.drafting, self.availability
        times = (
            availability.wake_ms(is_up=self.connection.is_up, patience_ms=drafting.patience_ms),
            drafting.wake_ms(now),
        )
        wake_ms = min((each for each in times if each is not None and each < math.inf), default=None)
        due = None  # a timer, since `asyncio.timeout` makes a wait take a third longer
        if wake_ms is not None:
            due = asyncio.get_running_loop().call_later(max(0.0, (wake_ms - now) / 1e3), self.wake)
        try:
            item: InboxItem | None = await self._inbox.get()
        finally:
            if due is not None:
                due.cancel()
        if wake_ms is not None:
            availability.monitor.on_wake(now_ms(), now_ms() - wake_ms)
        while item is not None:
            await self._handle(item)
            item = None if self.answers.events else next(taken(self._inbox), None)

    async def _handle(self, item: InboxItem) -> None:
        if isinstance(item, FrameReceived | StreamOpened | StreamLost) and not self.connection.accept(item):
            return
        session, drafting, is_served = self._session, self.own.drafting, self.availability.is_served
        reaction = NOTHING
        try:
            match item:
                case FrameReceived():
                    session.on_server_frame(item.frame)
                case StreamOpened():
                    session.on_opened(item)
                    self._replaced.on_opened()
                case StreamLost(error=MismatchError()):
                    self._replaced.on_mismatch(item)
                case StreamLost():
                    reaction = session.on_lost(item)
                case DraftExtended():
                    drafting.online.on_extended(now_ms(), item)
                case TokenWritten():
                    if not is_served:
                        drafting.standalone.on_written(now_ms(), item)
                case ProtocolError():
                    raise item
                case MoaError():
                    self._failure = item
                case happened:
                    reaction = happened()
        except ProtocolError as error:
            reaction = self.availability.distrust(error)
        except NoFormsError as error:
            reaction = session.on_refused(error)
        await self._follow(reaction)

    async def _follow(self, reaction: Reaction) -> None:
        for command in reaction.commands:
            match command:
                case SendBeat():
                    self.connection.queue_frame(pb.ClientFrame(beat=pb.Beat(stamp=command.stamp)))
                case GiveUp():
                    self._failure = command.error
                case LinkCommand.LEAVE:
                    self._replaced.stop_asking()
                    await self.connection.drop()
                case LinkCommand.REOPEN:
                    await self._session.reopen(now_ms())
                case LinkCommand.GO_STANDALONE:
                    self.own.drafting.restart()
                    if not self._is_stopping:
                        self.own.drafting.standalone.begin()
                case _:
                    assert_never(command)
        self.answers.events += reaction.events

    def wake(self) -> None:
        """Has the loop look at what is due now."""
        self._inbox.put_nowait(lambda: NOTHING)

    def stop(self) -> None:
        """Asks the server to end the running answer where it is; its last verdict then ends `ask`."""
        self._is_stopping = True
        self.wake()

    def go_offline(self) -> None:
        """Continues without the server until `go_online`."""
        self.availability.go_offline()
        if self.own.device.companion is not None and self._may_write:  # there is nothing to wait for
            self.own.drafting.standalone.asked_for = True
        self.wake()

    def go_online(self) -> None:
        self.availability.go_online()
        self.own.drafting.standalone.asked_for = False
        self.connection.start()
        self.wake()

    def write_standalone(self) -> None:
        """Continues the running answer without the server, however unlikely the text is, until the server is back."""
        self.own.drafting.standalone.asked_for = True
        self.wake()

    def restore(self, state: ConversationState) -> None:
        """Continues a conversation that was kept; to be called before the first question.

        Answers that no server has verified are verified at the next contact, for which `attend` waits.
        """
        self.answers.restore(state)
        if state.unverified:
            self.availability.begin_lost()
            self._session.connect()

    def rewind(self, answers: int) -> None:
        """Keeps the first `answers` answers, 0 to begin again; the server learns of it with the next question.

        A question that was taken back, and an answer that was refused before anything of it was committed, are none.
        """
        if self.answers.rewind(answers):
            self.own.drafting.restart()
            self._session.is_outdated = True

    async def close(self) -> None:
        await self._replaced.close()
        await self.connection.leave()
        self.own.drafting.close()

    async def _catch_up(self) -> None:
        """Handles what has happened since the last answer, and makes everything ready for the next one."""
        self._is_stopping, self._failure, self.availability.error = False, None, None
        self.own.drafting.standalone.renew()
        await self._session.leave_outdated()
        if self.answers.front is None and self.own.next is not None:
            await self.connection.drop()
            deque(taken(self._inbox), 0)
            self.own.change(self.own.next)
        for item in taken(self._inbox):
            await self._handle(item)
        self.connection.dialer.look_around()  # for the next question

"""The session of one conversation at its servers: how it begins, and where a text resumes after a cut.

A stream begins with Open: all committed tokens, the token by which that server knows the session, and the question of
the answer under way with what this device has written of it, as one long draft. What the server agrees with is
committed, the rest replaced. A question that is newer than the Open follows it. While a stream was only silent, the
first frame that advances the answer resumes it.
State: the tokens by which servers know the session, the newest stream's server, and what that was sent. Nothing here
waits for it: frames are queued on the connection.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, NoFormsError, ProtocolError, RateLimitError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish, Memory, Plane, Verdict
from moa_shared.protocol.protobuf_messages import VerdictFrames, ask_to_proto, thin_memory_to_proto
from moa_shared.tree import DraftTree

from moa_client.conversation.conversation import OpenAnswer, Phase
from moa_client.conversation.events import ServerChanged
from moa_client.conversation.open_answers import OpenAnswers
from moa_client.drafting.drafter_thread import DrafterResult
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.conversation_device import ConversationDevice
from moa_client.link.availability import NOTHING, Availability, GiveUp, Reaction
from moa_client.link.connection import FrameReceived, ServerConnection, StreamLost, StreamOpened
from moa_client.link.fleet import Fleet

InboxItem = FrameReceived | StreamOpened | StreamLost | DrafterResult | Callable[[], Reaction]
Inbox = asyncio.Queue[InboxItem]  # what a conversation's engine handles, one thing at a time


def taken(inbox: Inbox) -> Iterator[InboxItem]:
    while not inbox.empty():
        yield inbox.get_nowait()


class ServerSession:
    """What a conversation, whose front answer it is about, exchanges with its server, whichever that is."""

    def __init__(
        self,
        link: Fleet,
        answers: OpenAnswers,
        availability: Availability,
        own: ConversationDevice,
        settings: DraftingSettings,
        inbox: Inbox,
    ) -> None:
        self.connection = ServerConnection(link, self._open, inbox.put_nowait, answers.conversation.hashes)
        self.is_outdated = False  # the stream is about a conversation that was begun again or rewound since
        self.answers = answers
        self._conversation = answers.conversation
        self.availability = availability
        self.own = own
        self._settings = settings
        self.inbox = inbox
        self._reader = VerdictFrames()
        self._resume_tokens: dict[str, bytes] = {}  # by the address of the server that gave it: only it may know it
        self._address = self._label = ""  # of the newest stream's server, the second for people
        self._holds_forms = True  # that server
        self._thins_memory = False  # it sends the rows that it is asked for
        self._asked = 0  # id of the newest question that it was sent on this stream; 0: none
        self._written = 0  # how many provisional tokens of its answer the Open gave
        self._stopped = 0  # id of the question whose answer it was asked to end; 0: none

    # ------------------------------------------------------------ where a text resumes

    def _open(self, address: str) -> pb.Open:
        """The first frame to the server at this address."""
        conversation, drafting, device = self._conversation, self.own.drafting, self.own.device
        self._asked, self._written, self._stopped, ask = 0, 0, 0, None
        if (answer := self.answers.front) is not None and conversation.phase is Phase.ANSWERING:
            conversation.in_flight.drop()
            written = drafting.online.propose(DraftTree.chain(answer.written))
            ask = replace(conversation.ask_from(len(conversation.tokens)), provisional=written)
            self._asked, self._written = ask.id, len(answer.written)
        now = now_ms()
        drafting.memory.change(now, drafting.wanted_memory(now))
        thin = drafting.memory.thin
        return pb.Open(
            protocol_version=PROTOCOL_VERSION,
            identity=device.identity,
            codecs=drafting.memory.offered,  # type: ignore[arg-type]
            resume_token=self._resume_tokens.get(address, b""),
            tokens=conversation.tokens,
            reused_state=Plane.REUSED_STATE in (device.drafting.planes if device.drafting is not None else {}),
            run_ahead=drafting.lets_server_run_ahead,
            memory_from=drafting.memory.first_missing(len(conversation.tokens)),
            ask=ask_to_proto(ask) if ask is not None else None,
            server_drafts=self._settings.server_drafts,
            thin_memory=thin_memory_to_proto(thin) if thin is not None else None,
        )

    def on_opened(self, stream: StreamOpened) -> None:
        opened, drafting, answers = stream.opened, self.own.drafting, self.answers
        window, conversation = drafting.online.window, self._conversation
        self._reader = VerdictFrames()
        self._resume_tokens[stream.address] = opened.resume_token
        self._holds_forms, self._thins_memory = opened.limits.constraints, opened.thin_memory
        drafting.memory.on_opened(opened.codec)
        if opened.HasField("new_execution"):
            self.own.change_execution(opened)
        drafting.online.mark_synced()
        is_elsewhere = self._address not in ("", stream.address)
        if is_elsewhere:
            message = f"{stream.label} answers now instead of {self._label}. {stream.reason}".rstrip()
            answers.events.append(ServerChanged("address", message))
            window.forget_server()
        self._address, self._label = stream.address, stream.label
        if answers.front is not None:
            self._check_form(answers.front.settings)
        self.availability.on_opened(now_ms(), stream.took_ms, is_elsewhere=is_elsewhere)
        window.rtt_ms.add(stream.took_ms)
        if conversation.tokens:
            drafting.tell(conversation.tokens, conversation.hashes)
        drafting.online.rest.on_opened(server_drafts=opened.server_drafts)
        if not self._thins_memory:
            drafting.memory.change(now_ms(), None)
        self._resume(self._written)

    def _resume(self, sent: int) -> None:
        """Called when the server is available (again).

        `sent`: provisional tokens of the front answer that it has been given on this stream.
        """
        answer, conversation, drafting = self.answers.front, self._conversation, self.own.drafting
        drafting.standalone.restart()
        is_asking = answer is not None and conversation.phase is Phase.ANSWERING
        if answer is not None and is_asking and self._asked != conversation.ask_id:
            self._send_ask(conversation.ask_from(), answer)  # the question is newer than this stream's Open
            sent = len(answer.written)
        self._fit_memory(now_ms())
        was_served = self.availability.is_served
        self.answers.events += self.availability.on_return(is_answering=answer is not None)
        if not was_served:
            drafting.standalone.renew()
            drafting.standalone.asked_for = False
            if answer is not None and answer.written:
                drafting.online.adopt_written(answer.written, sent)

    # ------------------------------------------------------------ the user

    def ask(self, ask: Ask | None) -> None:
        """Sends the question that is now the conversation's to the server, if there is one."""
        answer, drafting = self.answers.front, self.own.drafting
        if ask is None or answer is None:
            return
        drafting.online.on_asked()
        drafting.read_question(self._conversation.tokens, self._conversation.hashes)
        if self.connection.is_up and self.availability.is_served:
            self._send_ask(ask, answer)

    def _send_ask(self, ask: Ask, answer: OpenAnswer) -> None:
        self._check_form(ask.settings)
        online = self.own.drafting.online
        self._asked = ask.id
        self.connection.send_ask(replace(ask, provisional=online.propose(DraftTree.chain(answer.written))))
        online.mark_synced()

    def _check_form(self, settings: AnswerSettings) -> None:
        """Raises NoFormsError if an answer must have a form, which the server of the newest stream would ignore."""
        if settings.sampling.constraint is not None and not self._holds_forms:
            raise NoFormsError(f"{self._label} cannot hold answers to a form.")

    async def stop(self) -> bool:
        """Ends the current answer for the user; whether it is over, and not only the server asked to end it.

        A standalone answer ends at once; later frames about it must not be handled, so the stream is left.
        """
        connection, ask = self.connection, self._conversation.ask_id
        server_knows = self.answers.current is self.answers.front
        if server_knows and self.availability.is_served:
            if connection.is_up and self._stopped != ask:  # once on each stream
                self._stopped = ask
                connection.queue_frame(pb.ClientFrame(stop=pb.Stop(base=self._conversation.answer_length, ask=ask)))
            return False
        self.own.drafting.standalone.restart()
        self.answers.stop()
        if server_knows and (connection.is_up or connection.is_trying):
            await connection.lose()
        return True

    # ------------------------------------------------------------ the stream

    def tick(self, now: float) -> Reaction:
        availability, connection = self.availability, self.connection
        return availability.tick(
            now,
            is_up=connection.is_up,
            is_trying=connection.is_trying,
            is_expected=self.answers.front is not None,
            patience_ms=self.own.drafting.patience_ms,
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
            self._resume_tokens.clear()
            self.own.drafting.memory.restart()
        deque(taken(self.inbox), 0)  # frames about the previous conversation
        self.is_outdated = False

    def on_lost(self, lost: StreamLost) -> Reaction:
        """The stream is lost, or an attempt to open one has failed; what to do."""
        error, front, availability = lost.error, self.answers.front, self.availability
        if isinstance(error, ProtocolError):
            raise error
        if lost.rests:
            if front is not None:  # a question was on its way when the server took the stream for idle
                self.connection.start()
            return NOTHING
        if not lost.broke:
            availability.outages.on_failed(now_ms())
        if isinstance(error, RateLimitError) and lost.wait_seconds and front is not None:
            return availability.on_told_to_wait(now_ms(), error, 1e3 * lost.wait_seconds)
        if lost.retrying or front is None:
            return availability.on_lost(error, broke=lost.broke, is_expected=front is not None)
        return self.on_refused(error)

    def on_refused(self, error: MoaError) -> Reaction:
        """Ends the answer, or drops an earlier one, which the server will not verify."""
        answers = self.answers
        if answers.current is answers.front:
            return Reaction((GiveUp(error),))  # the user must change the question
        self.own.drafting.restart()
        self.ask(answers.on_refused(error))
        if answers.front is not None:
            self.connection.start()
            return NOTHING
        return Reaction(events=self.availability.on_idle(error.message))

    # ------------------------------------------------------------ frames

    def on_server_frame(self, frame: pb.ServerFrame) -> None:
        if self.is_outdated:
            return
        now, availability, drafting = now_ms(), self.availability, self.own.drafting
        availability.on_frame(now, is_progress=not frame.HasField("beat"))
        if availability.wants_offline:  # the stream will be left
            return
        if availability.is_back(now):
            self._resume(0)
        for message in self._reader.messages_in(frame):
            match message:
                case Verdict():
                    self._on_verdict(message, now)
                case Memory():
                    self.answers.figures.memory_bytes += len(message.payload)
                    if read := drafting.memory.on_memory(now, message, self._conversation.hashes):
                        self.connection.queue_frame(pb.ClientFrame(credit=pb.Credit(bytes=read)))
                case pb.Beat():
                    took, window = availability.monitor.on_beat(now, message.stamp), drafting.online.window
                    if took is not None:
                        window.rtt_ms.add(took)
                    if took is not None and window.step_ms.samples:
                        self.answers.events += availability.grade(window.step_ms.mean)

    def _on_verdict(self, verdict: Verdict, now: float) -> None:
        if verdict.finish is Finish.DRAINING:
            verdict = replace(verdict, finish=Finish.UNFINISHED)  # the server ends, not the answer
        answers, drafting, conversation = self.answers, self.own.drafting, self._conversation
        self.availability.monitor.on_step(verdict.step_ms)
        effect = drafting.online.follow_verdict(now, verdict)
        drafting.count(len(effect.tokens))
        self._fit_memory(now)
        if effect.tokens:
            if answers.current is not None and answers.current is answers.front:  # others belong to an earlier answer
                answers.current.figures.count_verdict(verdict)
            answers.on_committed(effect)
            drafting.tell(conversation.tokens, conversation.hashes)
            drafting.memory.on_verdict(now)
        if effect.finish is not Finish.UNFINISHED:
            self.ask(answers.on_finished(effect.finish))
        if answers.front is None or not answers.front.written:
            answers.events += self.availability.on_verified()

    def _fit_memory(self, now: float) -> None:
        """Asks for more rows of memory, or for fewer, if that has become right."""
        wanted, memory = self.own.drafting.wanted_memory(now), self.own.drafting.memory
        if self._thins_memory and wanted != memory.thin:
            thin = thin_memory_to_proto(wanted) if wanted is not None else None
            self.connection.queue_frame(pb.ClientFrame(set_memory=pb.SetMemory(thin=thin)))
            memory.change(now, wanted)


def now_ms() -> float:
    """The clock of all timers, in milliseconds."""
    return 1e3 * time.monotonic()

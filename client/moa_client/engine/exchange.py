"""What a conversation exchanges with its server: handshakes, questions, verdicts, memory.

State: what the server has been told on the newest stream, and the tokens by which servers know the session. Nothing
here waits: frames are queued on the connection, the drafter works on its thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from moa_shared.errors import MoaError, ProtocolError, RateLimitError, UnavailableError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.protocol.handshake_checks import IDLE
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Ask, Memory, Verdict

from moa_client.conversation.answer_figures import SessionFigures
from moa_client.conversation.answer_queue import AnswerQueue
from moa_client.conversation.conversation import Phase
from moa_client.conversation.events import ExecutionChanged, LinkChanged, ServerChanged
from moa_client.conversation.jobs import Job
from moa_client.device.loading import Device
from moa_client.drafting.device_drafting import DeviceDrafting
from moa_client.drafting.inference_thread import InferenceThread
from moa_client.drafting.results import Result
from moa_client.drafting.settings import DraftingSettings
from moa_client.link.availability import Availability, LinkStep, Steps
from moa_client.link.connection import ServerConnection, StreamLost, StreamOpened
from moa_client.link.frames import Beat, FrameReader, FrameSender, is_beat, make_open

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb


@dataclass(slots=True)
class SentState:
    """What the server has been told on the newest stream.

    Args:
        question: id of the newest question; 0: none.
        provisional: how many provisional tokens of its answer the Open gave.
        stopped: id of the question whose answer it was asked to end; 0: none.
    """

    question: int = 0
    provisional: int = 0
    stopped: int = 0


class Exchange:
    """Exchanges messages with the server about the front answer of a queue.

    Args:
        device: whose identity the server learns, and whose drafter drafts.
        codec: of memory, the best one.
        post: takes the drafter's results.
        thread: that drafters of several conversations share; None: one of its own.
    """

    def __init__(
        self,
        answers: AnswerQueue,
        presence: Availability,
        connection: ServerConnection,
        device: Device,
        settings: DraftingSettings,
        codec: Codec,
        post: Callable[[Result], None],
        thread: InferenceThread | None = None,
    ) -> None:
        self.answers = answers
        self.figures = SessionFigures()
        self.failure: MoaError | None = None  # that ends the answer
        self._conversation = answers.conversation
        self._presence = presence
        self._connection = connection
        self._sender = FrameSender(connection)
        self._reader = FrameReader()
        self._settings = settings
        self._codec = codec
        self._post = post
        self._thread = thread
        self._told = SentState()
        self._resume_tokens: dict[str, bytes] = {}  # by the address of the server that gave it: only it may know it
        self._address = ""  # of the newest stream's server
        self._label = ""  # the same for people
        self.use(device)

    def use(self, device: Device) -> None:
        """Sets up drafting with a device; an open stream must be left before."""
        self.device = device
        self.drafting = DeviceDrafting(
            device.drafter,
            device.planes,
            device.step_ms,
            self._codec,
            self._settings,
            self.answers,
            self._sender.draft,
            self._post,
            self._thread,
        )

    def refuse_drafter(self) -> None:
        """The server has no memory for the drafter; a stream is opened without it from now on."""
        self.device = self.device.refused()
        self.drafting.stop_for_servers()

    def forget_session(self) -> None:
        """Makes the next Open begin a new session."""
        self._resume_tokens.clear()

    # ------------------------------------------------------------ questions

    def ask(self, ask: Ask | None) -> None:
        """Sends the question that is now the conversation's to the server, if there is one."""
        job = self.answers.front
        if ask is None or job is None:
            return
        self.drafting.online.on_asked()
        if self._connection.is_up and self._presence.is_served:
            self._send_ask(ask, job)

    def stop(self) -> None:
        """Asks the server to end the front answer, once on each stream."""
        ask = self._conversation.ask_id
        if self._connection.is_up and self._told.stopped != ask:
            self._told.stopped = ask
            self._sender.stop(self._conversation.answer_length, ask)

    def beat(self, stamp: int) -> None:
        """Asks the server for a sign of life."""
        self._sender.beat(stamp)

    def _send_ask(self, ask: Ask, job: Job) -> None:
        online = self.drafting.online
        self._told.question = ask.id
        self._sender.ask(replace(ask, provisional=online.propose_written(job.written)))
        online.on_told()

    # ------------------------------------------------------------ the stream

    def make_open(self, address: str) -> pb.Open:
        """The handshake with the current state of everything, for the server at this address."""
        conversation, drafting = self._conversation, self.drafting
        if self._keeps_text and not self._presence.is_served:
            self.answers.keep()
            drafting.standalone.restart()  # what the drafter is writing continues text that is committed now
        job, ask = self.answers.front, None
        self._told = SentState()
        if job is not None and conversation.phase is Phase.ANSWERING:
            ask = replace(conversation.resume(), provisional=drafting.online.propose_written(job.written))
            self._told = SentState(ask.id, len(job.written))
        return make_open(
            self.device.identity,
            self._resume_tokens.get(address, b""),
            conversation.tokens,
            ask,
            codecs=drafting.memory.offered,
            memory_from=drafting.memory.first_missing(len(conversation.tokens)),
            reused_state=self.device.state_width > 0,
            run_ahead=drafting.lets_server_run_ahead,
            server_drafts=self._settings.server_drafts,
        )

    def on_up(self, up: StreamOpened) -> None:
        """A stream is open.

        Raises:
            ProtocolError: the server has chosen what was not offered.
        """
        opened, drafting = up.opened, self.drafting
        self._reader = FrameReader()
        drafting.memory.on_opened(opened.codec)
        if opened.HasField("new_execution"):
            self._change_execution(opened)
        self._resume_tokens[up.address] = opened.resume_token
        drafting.online.on_told()
        is_elsewhere = self._is_elsewhere(up)
        if is_elsewhere:
            drafting.online.window.forget_server()
        self._presence.on_opened(now_ms(), up.took_ms, is_elsewhere=is_elsewhere)
        drafting.online.window.rtt_ms.add(up.took_ms)
        if self._conversation.tokens:
            drafting.tell(self._conversation.tokens, self._conversation.hashes)
        self._return(self._told.provisional)

    def _is_elsewhere(self, up: StreamOpened) -> bool:
        """Whether another server has opened this stream than the one before; then the reader is told."""
        before, self._address = self._address, up.address
        label_before, self._label = self._label, up.label
        if before in ("", up.address):
            return False
        message = f"{up.label} answers now instead of {label_before}. {up.reason}".rstrip()
        self.answers.events.append(ServerChanged("address", message))
        return True

    def _change_execution(self, opened: pb.Opened) -> None:
        """Called when the server computes differently from the one on which the conversation began."""
        is_news = bool(self.device.identity.execution)  # if no server was ever reached, there is nothing to compare
        self.device = self.device.on_execution(opened)
        self.answers.end_rule = self.device.end_rule
        if is_news:
            execution = opened.new_execution.execution
            self.answers.events.append(ExecutionChanged(execution.level, execution.exact))

    def _return(self, sent: int) -> None:
        """Called when the server is available (again).

        Args:
            sent: provisional tokens of the front answer that it has been given on this stream.
        """
        job, conversation, standalone = self.answers.front, self._conversation, self.drafting.standalone
        standalone.restart()
        is_asking = conversation.phase is Phase.ANSWERING
        if job is not None and is_asking and self._told.question != conversation.ask_id:
            self._send_ask(conversation.repeat(), job)  # the question is newer than this stream's Open
            sent = len(job.written)
        steps = self._presence.on_return(is_answering=job is not None)
        if LinkStep.RETURN in steps:
            standalone.renew()
            standalone.asked_for = False
            if job is not None and job.written:
                self.drafting.online.adopt_written(job.written, sent)
        self.report(steps)

    def on_down(self, down: StreamLost) -> Steps:
        """The stream is lost, or an attempt to open one has failed; what to do.

        Raises:
            ProtocolError: because the server violates the protocol.
        """
        error, front = down.error, self.answers.front
        if isinstance(error, ProtocolError):
            raise error
        if down.rests:
            if front is not None:  # a question was on its way when the server took the stream for idle
                self._connection.start()
            return []
        if isinstance(error, RateLimitError) and down.wait_seconds and front is not None:
            return self._presence.on_told_to_wait(now_ms(), error, 1e3 * down.wait_seconds)
        if down.retrying or front is None:
            return self._presence.on_down(error, broke=down.broke, is_expected=front is not None)
        if self.answers.current_is_front:
            self.failure = error  # the user must change the question
            return []
        return self._on_refused_standalone(error)

    def _on_refused_standalone(self, error: MoaError) -> Steps:
        """Drops an earlier answer, which the server will not verify."""
        self.drafting.restart()
        self.ask(self.answers.on_refused(error))
        if self.answers.front is not None:
            self._connection.start()
            return []
        return self._presence.on_idle(error.message)

    # ------------------------------------------------------------ frames

    def on_frame(self, frame: pb.ServerFrame) -> None:
        """Takes in a frame.

        Raises:
            ProtocolError: it contradicts what is known.
        """
        now, presence = now_ms(), self._presence
        presence.on_frame(now, is_progress=not is_beat(frame))
        if presence.wants_offline:  # the stream will be left
            return
        if presence.is_back(now):
            if self._keeps_text and self._has_provisional:
                presence.replace_stream()  # the server has continued differently in this one
                return
            self._return(0)
        for message in self._reader.read(frame):
            match message:
                case Verdict():
                    self._on_verdict(message, now)
                case Memory():
                    self._on_memory(message, now)
                case Beat():
                    self._on_beat(message, now)
                case _ if message.reason != IDLE:
                    reason = message.reason or "it is shutting down"
                    presence.error = UnavailableError(
                        f"The server is going away: {reason}.", hint="Ask again, or try another server."
                    )

    def _on_beat(self, beat: Beat, now: float) -> None:
        took, window = self._presence.monitor.on_beat(now, beat.stamp), self.drafting.online.window
        if took is None:
            return
        window.rtt_ms.add(took)
        if window.step_ms.samples:
            self.report(self._presence.grade(window.step_ms.mean))

    def _on_verdict(self, verdict: Verdict, now: float) -> None:
        if verdict.finish is Finish.DRAINING:
            verdict = replace(verdict, finish=Finish.UNFINISHED)  # the server ends, not the answer
        progress = self.drafting.online.on_verdict(now, verdict)
        if progress.tokens:
            if self.answers.current_is_front:  # others belong to an earlier answer
                self.figures.newest.on_verdict(verdict)
            self.answers.on_committed(progress.tokens)
            text = self._conversation.tokens
            self.drafting.tell(text, self._conversation.hashes)
            codec = self.drafting.memory.on_verdict(now, len(progress.tokens), len(text))
            if codec is not None:
                self._sender.set_codec(codec)
        if progress.finish is not Finish.UNFINISHED:
            self.ask(self.answers.on_finished(progress.finish))
        if not self._has_provisional:
            self.report(self._presence.on_verified())

    def _on_memory(self, memory: Memory, now: float) -> None:
        taken = self.drafting.memory.on_memory(now, memory, self._conversation.hashes)
        if taken:
            self._sender.credit(taken)

    @property
    def _keeps_text(self) -> bool:
        """Whether standalone text is kept rather than verified."""
        return self._settings.reconcile == "keep"

    @property
    def _has_provisional(self) -> bool:
        """Whether provisional text of the front answer is shown."""
        job = self.answers.front
        return job is not None and bool(job.written)

    def report(self, steps: Steps) -> None:
        """Lets the reader know what has changed about the link."""
        self.answers.events += [step for step in steps if isinstance(step, LinkChanged)]


def now_ms() -> float:
    """The clock of all timers, in milliseconds."""
    return 1e3 * time.monotonic()

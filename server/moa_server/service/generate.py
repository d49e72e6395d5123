"""One Generate call: the target without a device, through the same session and engine as split inference.

State: its own session, freed when the call ends. Invariant: the engine runs ahead of what the client has taken in by at
most the run-ahead limit, so a client that does not read costs nothing more.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import AuthenticationError, ConfigError, ContextLengthError, MoaError, RateLimitError
from moa_shared.models.files import Pooling
from moa_shared.protocol.messages import AnswerSettings, Ask, Finish, Verdict
from moa_shared.protocol.protobuf_messages import chances_to_proto, settings_from_proto
from moa_shared.tracing import is_traced

from moa_server.access.limits import Caller
from moa_server.drafting.draft_decision import drafting_source
from moa_server.engine.live_session import AnswerTrace, Attachment, Listener, LiveSession
from moa_server.service.frame_writer import BoundedWriter
from moa_server.service.host import Host, OpenCall
from moa_server.service.services import Services

Vector = npt.NDArray[np.float64]


async def embed(host: Host, caller: Caller, request: pb.EmbedRequest) -> pb.EmbedResponse:
    services, tokens = host.services, tuple(request.tokens)
    host.lifecycle.check_open()
    if len(tokens) > (most := services.served.context_tokens):
        raise ContextLengthError(f"The text has {len(tokens)} tokens, at most {most} fit.", hint="Send it in parts.")
    live = services.registry.new()
    live.caller = caller
    services.let_in(live, caller)
    live.turn.stepping = True  # its keys and values must not be given to others meanwhile
    try:
        live.account.on_ask(1, len(tokens))
        services.pool.reserve(live, live.tensors.cache.most_nbytes(len(tokens)))
        vector = await _read(services, live, tokens)
    finally:
        live.turn.stepping = False
        services.registry.close(live)
    pooling = services.served.pooling
    return pb.EmbedResponse(values=vector, pooling=pooling.kind.name, trained=pooling.is_trained)


async def _read(services: Services, live: LiveSession, tokens: Sequence[int]) -> Vector:
    chunk, target = services.settings.prefill_chunk, services.engine.stepper.target
    is_mean = services.served.pooling.kind is Pooling.MEAN

    def states_of(part: Sequence[int]) -> Vector:
        states = target.forward(live.tensors.cache, part, None, (), target.layer_count).states[target.layer_count]
        summed: Vector = target.normed(states if is_mean else states[-1:]).sum(axis=0, dtype=np.float64)
        return summed

    total: Vector = np.zeros(1)
    for start in range(0, max(1, len(tokens)), chunk):
        part = tokens[start : start + chunk]
        states = await services.engine.jobs.result_of(partial(states_of, part), urgent=False)
        live.account.pay(len(part), 0, answering=True)
        total = total + states if is_mean else states
    return total / len(tokens) if is_mean else total


class Generation(Listener, OpenCall):
    """The server's end of a Generate call. `traceparent`: of the client's span; empty: none."""

    def __init__(
        self, host: Host, write: Callable[[pb.GenerateResponse], Awaitable[None]], caller: Caller, traceparent: str = ""
    ) -> None:
        self._services = host.services
        self._lifecycle = host.lifecycle
        self.caller = caller
        self._traceparent = traceparent
        self._writer = BoundedWriter(write, host.services.settings.write_seconds)
        self._news: asyncio.Queue[Verdict | MoaError] = asyncio.Queue()  # as much as the engine may run ahead
        self._live: LiveSession | None = None
        self._pause: asyncio.TimerHandle | None = None

    async def run(self, request: pb.GenerateRequest) -> None:
        services = self._services
        self._lifecycle.check_open()
        settings = settings_from_proto(request.sampling)
        services.check_settings(settings)
        tokens, given = _divided(request, settings)
        if given:
            settings = replace(settings, max_tokens=len(given), ignore_end_of_text=True, stop=(), loop_guard=False)
        constraint = settings.sampling.constraint
        form = await services.forms.begin(constraint, self.caller.owner) if constraint is not None else None
        if (count := len(request.tokens)) > services.most_tokens:
            raise ContextLengthError(f"The request has {count} tokens, at most {services.most_tokens} fit.")
        live = self._live = services.registry.new()
        services.let_in(live, self.caller)
        session = live.session
        session.run_ahead = True
        wants_drafts = request.server_drafts and not given and services.settings.drafts_here
        drafts_by = drafting_source(services.engine.stepper.sources, None, wanted=wants_drafts)
        live.drafting.agree(by_server=drafts_by is not None, drafts_forced=wants_drafts)
        if drafts_by is not None:
            stepper = services.engine.stepper
            services.engine.keep_rows(live, drafts_by, stepper.kept_widths(drafts_by, {}, drafts=True))
        try:
            session.on_ask(Ask(1, 0, session.hashes.at(0), tokens, settings), form, given)
            services.registry.attach(live, self.caller, Attachment(self))
        except MoaError:
            live.account.end_answer()
            raise
        live.account.on_ask(1, len(tokens))
        if is_traced():
            live.account.begin_trace(AnswerTrace(self._traceparent, live.number, len(tokens), cached=0))
        self._lifecycle.enter(self)
        try:
            services.reserve(live)
            is_over = False
            while not is_over:
                services.engine.wake(live)
                verdict = await self._news.get()
                if isinstance(verdict, MoaError):
                    raise verdict
                finish, chances = pb.Finish.Name(verdict.finish), chances_to_proto(verdict.chances)
                await self._writer.write(pb.GenerateResponse(tokens=verdict.tokens, finish=finish, chances=chances))
                is_over = verdict.finish is not Finish.UNFINISHED
                session.on_ack(verdict.base + len(verdict.tokens))
        finally:
            if self._pause is not None:
                self._pause.cancel()
            self._lifecycle.leave(self)
            services.registry.close(live)

    # ------------------------------------------------------------ what the engine and the lifecycle say

    def send_verdict(self, verdict: Verdict) -> None:
        self._news.put_nowait(verdict)

    def on_failure(self, error: MoaError) -> None:
        self._news.put_nowait(error)

    def on_held(self, refusal: RateLimitError) -> None:
        """Pauses: this call cannot be resumed, so it is held back instead of ended."""
        self._pause = asyncio.get_running_loop().call_later(refusal.retry_after_ms / 1e3, self._go_on)

    def _go_on(self) -> None:
        if self._live is None or self._live.closed:
            return
        try:
            self._services.let_in(self._live, self.caller)
        except RateLimitError as refusal:  # others of the same caller were faster
            self.on_held(refusal)
        else:
            self._services.engine.wake(self._live)

    def end_refused(self, refusal: AuthenticationError) -> None:
        self.on_failure(refusal)

    def end_answer(self) -> None:
        self._news.put_nowait(Verdict(0, 0, 0, (), Finish.DRAINING))


def _divided(request: pb.GenerateRequest, settings: AnswerSettings) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The text, and the answer that is given to it."""
    tokens, given = tuple(request.tokens), request.given
    if not given:
        return tokens, ()
    if given >= len(tokens):
        words = f"{given} of {len(tokens)} tokens are given as the answer."
        raise ConfigError(words, hint="Leave at least the first one out.")
    if settings.chances is None or settings.sampling.constraint is not None:
        words = "A given answer comes back with the chances of its tokens, and needs no form."
        raise ConfigError(words, hint="Ask for chances, and for no constraint.")
    return tokens[:-given], tokens[-given:]

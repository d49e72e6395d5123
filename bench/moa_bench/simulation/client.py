"""The client of a simulation: it streams drafts, or drafts in rounds, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from moa_client.conversation.conversation import Conversation, Phase, Progress
from moa_client.drafting.pacing import DraftWindow
from moa_client.drafting.streamed import DraftRule, DraftStep, StreamedDrafting
from moa_shared.protocol.messages import Ack, Draft, Verdict
from moa_shared.tree.draft_tree import DraftTree

from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import Costs
from moa_bench.simulation.text import VOCAB_SIZE, ScriptedText

ACK_TOKENS = 16  # as the client program: a quarter of how far a server runs ahead of a silent client


class SimulatedClient:
    """A client that drafts chains.

    Args:
        send: takes a message for the server.
        rule: of streamed drafts; None: none.
        round_length: of synchronous rounds; None: none.
        rtt_ms: what its link monitor would say.
    """

    def __init__(
        self,
        loop: EventLoop,
        costs: Costs,
        text: ScriptedText,
        send: Callable[[Draft | Ack], object],
        *,
        rule: DraftRule | None,
        round_length: int | None,
        rtt_ms: float,
    ) -> None:
        self.conversation = Conversation(VOCAB_SIZE)
        self.drafting = StreamedDrafting(self.conversation, rule) if rule is not None else None
        self.arrivals_ms: list[float] = []  # of each committed token
        self.drafted_nodes = 0
        self._window = rule if isinstance(rule, DraftWindow) else None
        if self._window is not None and rtt_ms:
            self._window.rtt_ms.add(rtt_ms)
        self._loop = loop
        self._costs = costs
        self._text = text
        self._send = send
        self._round_length = round_length
        self._busy = False
        self._told = 0  # committed tokens that the server knows we have

    def on_verdict(self, verdict: Verdict) -> None:
        conversation, now_ms = self.conversation, self._loop.now_ms
        progress = self._take_in(verdict)
        self.arrivals_ms += [now_ms] * len(progress.tokens)
        if conversation.phase is not Phase.ANSWERING:
            return
        if self.drafting is not None:
            self._draft_on()
        elif self._round_length is not None:
            self._loop.after(self._costs.draft_ms * self._round_length, partial(self._end_round, self._round_length))
        if len(conversation.tokens) - self._told >= ACK_TOKENS:
            self._told = len(conversation.tokens)
            self._send(Ack(self._told))

    def _take_in(self, verdict: Verdict) -> Progress:
        if self.drafting is None:
            return self.conversation.on_verdict(verdict)
        draft = self.conversation.draft
        progress = self.drafting.on_verdict(verdict)
        if self._window is not None:
            self._window.on_verdict(
                self._loop.now_ms, draft, progress.tokens, step_ms=verdict.step_ms, verified=verdict.drafted
            )
        return progress

    def _draft_on(self) -> None:
        drafting = self.drafting
        if self._busy or drafting is None:
            return
        step = drafting.next_step(self._loop.now_ms)
        frame = drafting.take_frame(flush=step is None)
        if frame is not None:
            self._send_draft(frame)
        if step is not None:
            self._busy = True
            self._loop.after(self._costs.draft_ms, partial(self._on_drafted, drafting, step))

    def _on_drafted(self, drafting: StreamedDrafting, step: DraftStep) -> None:
        self._busy = False
        drafting.on_drafted(step, [self._text.draft_on(step.committed, step.draft.tokens)])
        self.drafted_nodes += 1
        if self._window is not None:
            self._window.on_drafted(self._loop.now_ms, self._costs.draft_ms)
        self._draft_on()

    def _end_round(self, length: int) -> None:
        tokens: list[int] = []
        for _ in range(length):
            tokens.append(self._text.draft_on(len(self.conversation.tokens), tokens))
        self.drafted_nodes += length
        self._send_draft(self.conversation.propose(DraftTree.chain(tokens)))

    def _send_draft(self, message: Draft) -> None:
        self._told = max(self._told, message.base)
        self._send(message)

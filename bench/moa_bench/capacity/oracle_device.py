"""A device of one user: the client program's own drafting rules, with a script in the drafter's place.

Pure: clock readings are arguments, frames are returned. State: the conversation and the draft in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_client.conversation.conversation import Conversation, Phase
from moa_client.drafting.online import ACK_TOKENS
from moa_client.drafting.pacing import DraftWindow
from moa_client.drafting.streamed import DraftStep, StreamedDrafting
from moa_client.memory.plan import CREDIT_EVERY_BYTES
from moa_shared.protocol.messages import Ack, Draft, Verdict

from moa_bench.network.oracle import Script


class OracleDevice:
    """Drafts one chain that stays in flight, as `moa-client --mode chain` does.

    Args:
        script: what its drafter knows.
        plain_ms: of a plain step, as the server reports; 0: not known.
    """

    def __init__(self, script: Script, plain_ms: float = 0.0) -> None:
        self.conversation = Conversation(script.vocab_size)
        self._script = script
        self._window = DraftWindow(plain_ms=plain_ms)
        self._drafting = StreamedDrafting(self.conversation, self._window)
        self._step: DraftStep | None = None
        self._owed = 0  # bytes of memory received but not yet reported to the server
        self._told = 0  # committed tokens that the server knows we have

    @property
    def is_answering(self) -> bool:
        """Whether the answer is under way."""
        return self.conversation.phase is Phase.ANSWERING

    @property
    def is_drafting(self) -> bool:
        """Whether a draft step is under way."""
        return self._step is not None

    def on_verdict(self, now_ms: float, verdict: Verdict) -> tuple[int, ...]:
        """Takes in a verdict; returns the tokens that are new.

        Raises:
            ProtocolError: as `Conversation.on_verdict`.
        """
        draft = self.conversation.draft
        progress = self._drafting.on_verdict(verdict)
        if progress.tokens:
            self._window.on_verdict(now_ms, draft, progress.tokens, step_ms=verdict.step_ms, verified=verdict.drafted)
        return progress.tokens

    def on_memory(self, nbytes: int) -> int:
        """Takes in rows of so many bytes; the bytes to credit now, if it is time."""
        self._owed += nbytes
        if self._owed < CREDIT_EVERY_BYTES:
            return 0
        owed, self._owed = self._owed, 0
        return owed

    def on_drafted(self, now_ms: float, took_ms: float) -> None:
        """Ends the draft step under way: one more node, unless a verdict has overtaken it."""
        step, self._step = self._step, None
        if step is not None:
            self._drafting.on_drafted(step, [self._guess(step.committed, step.draft.tokens)])
            self._window.on_drafted(now_ms, took_ms)

    def take_frame(self, now_ms: float) -> Draft | Ack | None:
        """Begins a draft step if one is worthwhile, and gives the frame that is due."""
        conversation = self.conversation
        if not self.is_answering or conversation.answer_length == 0:
            return None  # the first token needs no draft
        step = self._drafting.next_step(now_ms)
        message: Draft | Ack | None = self._drafting.take_frame(flush=step is None)
        if self._step is None:
            self._step = step
        committed = len(conversation.tokens)
        if message is None and committed - self._told >= ACK_TOKENS:
            message = Ack(committed)
        if message is not None:
            self._told = message.base if isinstance(message, Draft) else message.committed
        return message

    def _guess(self, committed: int, drafted: Sequence[int]) -> int:
        """The script's token after some draft tokens; a wrong one once they have left the script."""
        position = committed + len(drafted)
        on_text = self._script.tokens[committed:position] == tuple(drafted)
        return self._script.proposal(position, on_text=on_text)

"""Drafts while the server decides: streamed as they are made, or one whole draft after each verdict.

State: the draft in flight, whether a round is due, how much of the committed text the server knows that we have, and
what the newest verdicts say about the server's own drafts: while it drafts, the device rests. What to send is returned,
the drafter runs on its thread; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.protocol.messages import Ack, Draft, Verdict
from moa_shared.tree import DraftTree

from moa_client.conversation.conversation import Conversation, Phase, VerdictEffect
from moa_client.drafting.pacing import CHAIN_BYTES, TREE_BYTES, DraftWindow
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DraftCompleted, DraftExtended, OnlineDrafter, StreamedDrafting
from moa_client.memory import MemoryPlan

# Of forwards shared with others, without nodes of the server's, after which it is taken to have no time for drafts. It
# also finds many places of a text not worth a guess: of 107 pauses in three answers (1600 tokens, one user) 98 were
# shorter than 16 verdicts and two longer than 64. There the device guesses no better, and would have all memory sent.
PATIENT_VERDICTS = 64
# As many forwards of this answer alone say as much: a drafter that has failed guesses nothing any more, and an older
# server does not say which forwards are shared.
LONE_TIMES = 4
# Tokens after which a device that drafts rests for TRIAL_VERDICTS, to see whether the server has time again; it costs
# at most so many guesses of so many.
TRIAL_TOKENS, TRIAL_VERDICTS = 256, 4


class DraftingRest:
    """Whether the device rests while the server drafts. `may_rest`: False: it always drafts."""

    def __init__(self, *, may_rest: bool) -> None:
        self._may_rest = may_rest
        self._patience = PATIENT_VERDICTS * LONE_TIMES  # lone forwards without nodes in them, for which it still rests
        self._is_trial = False
        self._drafted_tokens = 0

    @property
    def rests(self) -> bool:
        """Whether the server drafts, or may do so in a moment."""
        return self._may_rest and self._patience > 0

    def on_opened(self, *, server_drafts: bool) -> None:
        """A stream is open; a server that never drafts is not waited for."""
        if not server_drafts:
            self._patience = 0

    def on_verdict(self, verdict: Verdict) -> None:
        rested = self.rests
        if verdict.server_drafted:
            self._patience, self._is_trial = PATIENT_VERDICTS * LONE_TIMES, False
        elif rested:
            self._patience -= verdict.forwards * (LONE_TIMES if verdict.shared or self._is_trial else 1)
        if rested or self.rests:
            self._drafted_tokens = 0
            return
        self._drafted_tokens += len(verdict.tokens)
        if self._drafted_tokens >= TRIAL_TOKENS:
            self._drafted_tokens, self._patience, self._is_trial = 0, TRIAL_VERDICTS * LONE_TIMES, True


ACK_TOKENS = 16  # an eighth of how far a server runs ahead of a silent client
HOLD_STEPS = 0.25  # of the server, at most, that drafting waits for a row: one more row raises the acceptance by 3 %


class OnlineDrafting:
    """Drafts for one conversation while the server is connected.

    Args:
        drafter: None: it does not draft here.
        memory: whose newest row drafting waits for.
        plain_ms: of a plain step, as the server reports; 0: not known.
    """

    def __init__(
        self,
        settings: DraftingSettings,
        conversation: Conversation,
        drafter: OnlineDrafter | None,
        memory: MemoryPlan,
        plain_ms: float = 0.0,
        *,
        block_levels: int | None = None,
    ) -> None:
        self.window = DraftWindow(
            TREE_BYTES if settings.tree else CHAIN_BYTES,
            run_ahead=settings.run_ahead,
            plain_ms=plain_ms,
            block_levels=block_levels,
        )
        self.streamed = StreamedDrafting(conversation, self.window, announces_nothing=not settings.run_ahead)
        self._rounds = settings.rounds
        self.rest = DraftingRest(may_rest=settings.server_drafts)
        self._conversation = conversation
        self._drafter = drafter
        self._memory = memory
        self._round_due = False
        self._synced = 0  # committed tokens that the server knows we have

    @property
    def drafts(self) -> bool:
        """Whether this device drafts, and neither leaves it to the server nor finds that it has no time for drafts."""
        return self._drafter is not None and not self.rest.rests and not self.window.is_priced_out

    def restart(self) -> None:
        """Called when the draft in flight, and a round under way, are gone."""
        self.streamed.restart()
        self._round_due = True

    def stop(self) -> None:
        """Drafts no more: no server has memory for the drafter."""
        self._drafter = None
        self.streamed.restart()

    def on_asked(self) -> None:
        self.streamed.restart()
        self._round_due = False
        self._memory.hold_until_ms = 0.0

    def mark_synced(self) -> None:
        """Called when the server has learned everything committed."""
        self._synced = len(self._conversation.tokens)

    def propose_written(self, written: Sequence[int]) -> Draft | None:
        """Makes the standalone text the draft in flight, marked as sent; None if there is none."""
        self.streamed.restart()
        if not written:
            return None
        message = self._conversation.in_flight.propose(DraftTree.chain(written))
        self.streamed.adopt(len(written))
        return message

    def adopt_written(self, written: Sequence[int], sent: int) -> None:
        """Makes the standalone text the draft in flight, of which the server has the first `sent` tokens."""
        if sent == 0:
            self.propose_written(written)
            self.streamed.adopt(0)
        elif len(written) > sent:
            self._conversation.in_flight.extend_draft(written[sent:])

    def draft_on(self, now: float) -> list[Draft | Ack]:
        """Lets the drafter continue; what to send. `now` is in milliseconds."""
        conversation, drafter = self._conversation, self._drafter
        if conversation.phase is not Phase.ANSWERING or conversation.answer_length == 0:
            return []  # the first token needs no draft, and drafting before it would only guess at the prompt's end
        due: list[Draft | Ack] = []
        may_draft = now >= self._memory.hold_until_ms and not self.rest.rests
        if drafter is not None and not self._rounds:
            step = self.streamed.next_step(now) if may_draft else None
            if step is not None and not drafter.busy:
                drafter.begin_growth(step, conversation.sampling)
            draft = self.streamed.take_frame(flush=step is None)
            if draft is not None:
                due.append(draft)
                self._synced = max(self._synced, draft.base)
        elif drafter is not None and self._round_due and not drafter.busy and may_draft:
            self._round_due = False
            drafter.draft(len(conversation.tokens), conversation.sampling)
        committed = len(conversation.tokens)
        if committed - self._synced >= ACK_TOKENS:
            due.append(Ack(committed))
            self.mark_synced()
        return due

    def on_extended(self, now: float, extended: DraftExtended) -> None:
        step, growth = extended.step, extended.growth
        self.window.on_drafted(now, extended.took_ms if growth.tokens else None)
        if not self._memory.lacks_prompt:
            self.window.on_overtaken(growth, self.streamed.tokens_since(step))
        self.streamed.on_extended(step, growth)

    def on_completed(self, completed: DraftCompleted) -> Draft | None:
        """Takes in a whole draft, and gives it back to be sent; None: the conversation has moved on."""
        conversation = self._conversation
        if conversation.phase is not Phase.ANSWERING or completed.committed != len(conversation.tokens):
            return None
        draft = conversation.in_flight.propose(completed.tree)
        self._synced = max(self._synced, draft.base)
        return draft

    def follow_verdict(self, now: float, verdict: Verdict) -> VerdictEffect:
        """Takes in a verdict; what the drafter should wait for follows."""
        draft, before = self._conversation.in_flight.tree, len(self._conversation.tokens)
        effect = self._conversation.commit_verdict(verdict)
        self.streamed.follow_commit(effect)
        self.rest.on_verdict(verdict)
        if effect.tokens:
            memory, window = self._memory, self.window
            if before == self._conversation.answer_start:
                memory.begin_answer(now, before)
            window.on_verdict(
                now,
                draft,
                effect.tokens,
                step_ms=verdict.step_ms,
                verified=verdict.drafted,
                least_chance=verdict.least_chance,
                blind=memory.lacks_prompt,
            )
            self._round_due = True
            if self._rounds or not effect.kept_draft:
                memory.hold(now, before, HOLD_STEPS * window.step_ms.mean)
        return effect

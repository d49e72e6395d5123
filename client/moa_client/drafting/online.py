"""Drafts while the server decides: a draft stays in flight, grows while the device drafts, and is pruned by verdicts.

What to send is returned, the drafter runs on its thread; nothing here waits. State: the draft in flight and how much of
it was sent, which draft the step under way belongs to, how much of the committed text the server knows that we have,
and what the newest verdicts say about the server's own drafts: while it drafts, the device rests. Invariant: a node is
sent once, in order, and never after its draft was dropped; of a step that a verdict has overtaken only what hangs below
the verdict's tokens is taken: the rest of a block that takes longer than a step of the server.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from moa_shared.drafting.growing import Growth
from moa_shared.protocol.messages import Ack, Draft, Verdict
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree, subtree

from moa_client.conversation.conversation import Conversation, Phase, VerdictEffect
from moa_client.drafting.pacing import CHAIN_BYTES, TREE_BYTES, DraftWindow
from moa_client.drafting.settings import DraftingSettings
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


class DraftRule(Protocol):
    """What decides how far to draft ahead; `DraftWindow` is the one that follows measurements."""

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool: ...  # whether this draft is worth another level
    # Whether to send the newest `unsent` nodes of this draft now; `flush`: none follow for now.
    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool) -> bool: ...


class WholeDrafts:
    """A `DraftRule` of synchronous rounds, as in the paper: a draft of so many levels goes up when it is complete."""

    def __init__(self, levels: int) -> None:
        self._levels = levels

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool:
        return max(draft.depths, default=0) < self._levels

    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool) -> bool:
        return flush


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step of the drafter to run: new nodes below a draft."""

    serial: int  # of the draft that it extends
    committed: int  # tokens of the conversation that the drafter must have read
    draft: DraftTree
    numbers: tuple[int, ...]  # of the newest committed token and of the draft's nodes in the whole tree in flight
    text: int = 0  # of the text that has only grown since


@dataclass(frozen=True, slots=True)
class DraftExtended:
    step: DraftStep
    growth: Growth
    took_ms: float | None  # on the thread; None if the drafter had a prompt to read first, which is not typical


class OnlineDrafter(Protocol):
    @property
    def busy(self) -> bool: ...  # whether something that was asked for has not come
    def begin_growth(self, step: DraftStep, sampling: Sampling) -> None: ...  # `DraftExtended` comes


class OnlineDrafting:
    """Drafts for one conversation while the server is connected.

    `drafter`: None: it does not draft here. `memory`: whose newest row drafting waits for. `plain_ms`: of a plain step,
    as the server reports; 0: not known. `rule`: None: as the settings have it.
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
        rule: DraftRule | None = None,
    ) -> None:
        bytes_a_token = TREE_BYTES if settings.tree else CHAIN_BYTES
        self.window = DraftWindow(bytes_a_token, plain_ms=plain_ms, block_levels=block_levels)
        self._in_rounds = settings.rounds > 0
        self._rule = rule or (WholeDrafts(settings.rounds) if self._in_rounds else self.window)
        self.rest = DraftingRest(may_rest=settings.server_drafts)
        self._conversation = conversation
        self._drafter = drafter
        self._memory = memory
        self._synced = 0  # committed tokens that the server knows we have
        self._serial = 0
        self._text = 0  # changes where the text does more than grow
        self._sent = 0  # nodes of the tree in flight that were sent
        self._exhausted = -1  # committed tokens when the drafter had nothing more to guess
        self._told_nothing = -1  # committed tokens when the server learned that nothing comes

    @property
    def drafts(self) -> bool:
        """Whether this device drafts, and neither leaves it to the server nor finds that it has no time for drafts."""
        return self._drafter is not None and not self.rest.rests and not self.window.is_priced_out

    def restart(self) -> None:
        """Forgets the draft in flight (a new answer, another stream): the next step begins a new one."""
        self._text += 1
        self._forget()

    def stop(self) -> None:
        """Drafts no more: no server has memory for the drafter."""
        self._drafter = None
        self.restart()

    def on_asked(self) -> None:
        self.restart()
        self._memory.hold_until_ms = 0.0

    def mark_synced(self) -> None:
        """Called when the server has learned everything committed."""
        self._synced = len(self._conversation.tokens)

    def propose(self, tree: DraftTree) -> Draft | None:
        """Makes a tree, such as standalone text, the draft in flight, marked as sent; None if it is empty."""
        self.restart()
        self._sent = len(tree)
        return self._conversation.in_flight.propose(tree) if tree else None

    def adopt_written(self, written: Sequence[int], sent: int) -> None:
        """Makes the standalone text the draft in flight, of which the server has the first `sent` tokens."""
        if sent == 0:
            self.propose(DraftTree.chain(written))
            self._sent = 0
        elif len(written) > sent:
            self._conversation.in_flight.extend_draft(written[sent:])

    def draft_on(self, now: float) -> list[Draft | Ack]:
        """Lets the drafter continue; what to send. `now` is in milliseconds."""
        conversation, drafter = self._conversation, self._drafter
        if conversation.phase is not Phase.ANSWERING or conversation.answer_length == 0:
            return []  # the first token needs no draft, and drafting before it would only guess at the prompt's end
        due: list[Draft | Ack] = []
        if drafter is not None:
            may_draft = now >= self._memory.hold_until_ms and not self.rest.rests
            step = self.next_step(now) if may_draft else None
            if step is not None and not drafter.busy:
                drafter.begin_growth(step, conversation.sampling)
            draft = self.take_frame(flush=step is None)
            if draft is not None:
                due.append(draft)
                self._synced = max(self._synced, draft.base)
        committed = len(conversation.tokens)
        if committed - self._synced >= ACK_TOKENS:
            due.append(Ack(committed))
            self.mark_synced()
        return due

    def next_step(self, now_ms: float) -> DraftStep | None:
        """What the drafter should do now; None: nothing worthwhile."""
        conversation = self._conversation
        draft = conversation.in_flight.tree
        if conversation.phase is not Phase.ANSWERING or self._exhausted == len(conversation.tokens):
            return None
        return self._step_below(draft) if self._rule.may_grow(draft, now_ms) else None

    def _step_below(self, draft: DraftTree) -> DraftStep:
        conversation = self._conversation
        return DraftStep(self._serial, len(conversation.tokens), draft, conversation.in_flight.below[1], self._text)

    def on_extended(self, now: float, extended: DraftExtended) -> None:
        """Takes in the result of a step, as far as it goes on from the text as it is now."""
        step, growth, conversation = extended.step, extended.growth, self._conversation
        self.window.on_drafted(now, extended.took_ms if growth.tokens else None)
        if step.text != self._text:
            return
        if step.serial != self._serial and not step.draft and not self._memory.lacks_prompt:
            self.window.on_overtaken(growth, conversation.tokens[step.committed :])
        if conversation.phase is not Phase.ANSWERING:
            return
        if step.serial != self._serial:
            growth = self._overtaken(step, growth)
            if conversation.in_flight.tree or not growth.tokens:
                return
            step = self._step_below(conversation.in_flight.tree)
        if not growth.tokens:  # nothing more until something is committed
            self._exhausted = step.committed
            return
        known, first = len(step.draft), conversation.in_flight.end
        parents = [step.numbers[parent + 1] if parent < known else first + parent - known for parent in growth.parents]
        conversation.in_flight.extend_draft(growth.tokens, parents)

    def _overtaken(self, step: DraftStep, growth: Growth) -> Growth:
        """What a step's draft and growth have below the tokens that were committed meanwhile."""
        tree, node = DraftTree(step.draft.tokens + growth.tokens, step.draft.parents + growth.parents), ROOT
        for token in self._conversation.tokens[step.committed :]:
            child = tree.child_with(node, token)
            if child is None:
                return Growth()
            node = child
        kept, parents = subtree(tree.parents, node)
        return Growth(tuple(tree.tokens[each] for each in kept), tuple(parents))

    def take_frame(self, *, flush: bool = False) -> Draft | None:
        """The frame to send now; None: there is nothing to send, or it may wait for the nodes that follow."""
        conversation = self._conversation
        unsent = conversation.in_flight.end - self._sent
        draft = conversation.in_flight.tree
        committed = len(conversation.tokens)
        if self._in_rounds and flush and not draft and self._exhausted == committed != self._told_nothing:
            self.restart()
            self._told_nothing = self._exhausted = committed
            return conversation.in_flight.propose(draft)  # the server waits for one
        if not unsent or not draft or not self._rule.may_send(draft, unsent, flush=flush):
            return None
        message = conversation.in_flight.draft_message(self._sent)
        self._sent = conversation.in_flight.end
        self.window.on_sent(unsent)
        return message

    def follow_verdict(self, now: float, verdict: Verdict) -> VerdictEffect:
        """Takes in a verdict, which has confirmed or contradicted the draft; the drafter may have to wait for a row."""
        draft, before = self._conversation.in_flight.tree, len(self._conversation.tokens)
        effect = self._conversation.commit_verdict(verdict)
        if effect.kept_draft:
            self._conversation.in_flight.forget_nodes(self._sent)
        else:
            self._forget()
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
            if not effect.kept_draft:
                memory.hold(now, before, HOLD_STEPS * window.step_ms.mean)
        return effect

    def _forget(self) -> None:
        self._serial += 1
        self._sent = 0
        self._exhausted = self._told_nothing = -1

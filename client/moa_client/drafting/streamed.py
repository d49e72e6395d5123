"""The streamed draft: one chain or tree that stays in flight, grows while the device drafts, and is pruned by verdicts.

Pure: its caller runs the drafter on its thread and moves frames. State: how much of the conversation's draft
was sent, and which draft the drafter's step under way belongs to. Invariant: a node is sent once, in order, and never
after its draft was dropped; of a step of the drafter that a verdict has overtaken only what hangs below the verdict's
tokens is taken: the rest of a block that takes longer than a step of the server.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from moa_shared.drafting.growing import Growth
from moa_shared.errors import MoaError
from moa_shared.protocol.messages import Draft
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree, subtree

from moa_client.conversation.conversation import Conversation, Phase, VerdictEffect


class DraftRule(Protocol):
    """What decides how far to draft ahead; `DraftWindow` is the one that follows measurements."""

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool: ...  # whether this draft is worth another level
    # Whether to send the newest `unsent` nodes of this draft now; `flush`: none follow for now.
    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool) -> bool: ...
    def on_sent(self, nodes: int) -> None: ...  # called when a frame with this many nodes is sent


@dataclass(frozen=True, slots=True)
class DraftStep:
    """One step of the drafter to run: new nodes below a draft.

    Args:
        serial: of the draft that it extends.
        committed: how many tokens of the conversation the drafter must have read.
        numbers: of the newest committed token and of the draft's nodes in the whole tree in flight.
        text: of the text that has only grown since.
    """

    serial: int
    committed: int
    draft: DraftTree
    numbers: tuple[int, ...]
    text: int = 0


class StreamedDrafting:
    """Keeps one draft in flight.

    Args:
        conversation: whose draft in flight it is.
        rule: how far to draft ahead, and how many nodes a frame waits for.
        announces_nothing: whether a server that waits for drafts learns when none will come.
    """

    def __init__(self, conversation: Conversation, rule: DraftRule, *, announces_nothing: bool = False) -> None:
        self.conversation = conversation
        self.rule = rule
        self._announces_nothing = announces_nothing
        self._serial = 0
        self._text = 0  # changes where the text does more than grow
        self._sent = 0  # nodes of the tree in flight that were sent
        self._exhausted = -1  # committed tokens when the drafter had nothing more to guess
        self._told_nothing = -1  # committed tokens when the server learned that nothing comes

    def next_step(self, now_ms: float) -> DraftStep | None:
        """What the drafter should do now; None: nothing worthwhile."""
        conversation = self.conversation
        draft = conversation.in_flight.tree
        if conversation.phase is not Phase.ANSWERING or self._exhausted == len(conversation.tokens):
            return None
        if not self.rule.may_grow(draft, now_ms):
            return None
        return self._step_below(draft)

    def _step_below(self, draft: DraftTree) -> DraftStep:
        conversation = self.conversation
        return DraftStep(self._serial, len(conversation.tokens), draft, conversation.in_flight.numbers, self._text)

    def tokens_since(self, step: DraftStep) -> list[int]:
        """What was committed while the first step of a draft ran, and has overtaken it; nothing of any other step."""
        is_overtaken = step.text == self._text and step.serial != self._serial and not step.draft
        return self.conversation.tokens[step.committed :] if is_overtaken else []

    def on_extended(self, step: DraftStep, growth: Growth) -> None:
        """Takes in the result of a step, as far as it goes on from the text as it is now."""
        conversation = self.conversation
        if step.text != self._text or conversation.phase is not Phase.ANSWERING:
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
        conversation.in_flight.extend_draft(growth.tokens, parents, growth.copied)

    def _overtaken(self, step: DraftStep, growth: Growth) -> Growth:
        """What a step's draft and growth have below the tokens that were committed meanwhile."""
        tree, node = DraftTree(step.draft.tokens + growth.tokens, step.draft.parents + growth.parents), ROOT
        for token in self.conversation.tokens[step.committed :]:
            child = tree.child_with(node, token)
            if child is None:
                return Growth()
            node = child
        kept, parents = subtree(tree.parents, node)
        copied = {len(step.draft) + index for index in growth.copied}
        return Growth(
            tuple(tree.tokens[each] for each in kept),
            tuple(parents),
            tuple(place for place, each in enumerate(kept) if each in copied),
        )

    def take_frame(self, *, flush: bool = False) -> Draft | None:
        """The frame to send now; None: there is nothing to send, or it may wait for the nodes that follow."""
        conversation = self.conversation
        unsent = conversation.in_flight.end - self._sent
        draft = conversation.in_flight.tree
        committed = len(conversation.tokens)
        if self._announces_nothing and flush and not draft and self._exhausted == committed != self._told_nothing:
            self.restart()
            self._told_nothing = self._exhausted = committed
            return conversation.in_flight.propose(draft)
        if not unsent or not draft or not self.rule.may_send(draft, unsent, flush=flush):
            return None
        message = conversation.in_flight.draft_message(self._sent)
        self._sent = conversation.in_flight.end
        self.rule.on_sent(unsent)
        return message

    def follow_commit(self, effect: VerdictEffect) -> None:
        """Called when the conversation has taken in a verdict, which has confirmed or contradicted the draft."""
        if effect.kept_draft:
            self.conversation.in_flight.forget_nodes(self._sent)
        else:
            self._forget()

    def restart(self) -> None:
        """Forgets the draft in flight (a new answer, another stream): the next step begins a new one."""
        self._text += 1
        self._forget()

    def _forget(self) -> None:
        self._serial += 1
        self._sent = 0
        self._exhausted = self._told_nothing = -1

    def adopt(self, sent: int) -> None:
        """Continues the conversation's draft in flight, which was made elsewhere.

        `sent`: how many of its nodes the server has.
        """
        self._serial += 1
        self._sent = sent


class OnlineDrafter(Protocol):
    """Drafts one thing at a time, and posts the result later."""

    @property
    def busy(self) -> bool: ...  # whether something that was asked for has not come
    # Runs one step of a streamed draft; `DraftExtended` comes.
    def begin_growth(self, step: DraftStep, sampling: Sampling) -> None: ...
    def draft(self, committed: int, sampling: Sampling) -> None: ...  # makes a whole draft; `DraftCompleted` comes


@dataclass(frozen=True, slots=True)
class DraftExtended:
    """A step of a streamed draft.

    `took_ms`: on the thread; None if the drafter had a prompt to read first, which is not typical of other steps.
    """

    step: DraftStep
    growth: Growth
    took_ms: float | None


@dataclass(frozen=True, slots=True)
class DraftCompleted:
    """A whole draft, for one round."""

    committed: int
    tree: DraftTree


@dataclass(frozen=True, slots=True)
class TokenWritten:
    """One more token of standalone text; None: the drafter has nothing to say.

    Args:
        serial: of the text that it continues; `length`: how many tokens of it have been shown.
        chance: that it is the target's, if all before it are.
    """

    serial: int
    length: int
    token: int | None
    chance: float = 1.0


@dataclass(frozen=True, slots=True)
class DrafterFailed:
    """The drafter has failed, or could not read the server's memory (ProtocolError)."""

    error: MoaError


DrafterResult = DraftExtended | DraftCompleted | TokenWritten | DrafterFailed


class ResultInbox(Protocol):
    """Where a drafter's results go."""

    def post(self, item: DrafterResult, /) -> None: ...  # appends a result; called on the event loop

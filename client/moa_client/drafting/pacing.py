"""How far to draft ahead, how many nodes a frame waits for, and when a draft comes too late to be useful.

Pure: clock readings are arguments. State: smoothed measurements of the link, the drafter, the server's steps and the
acceptance. Invariant: what is sent up stays near the budget of bytes a token, whatever the acceptance.

Growth. A level i is confirmed with probability h^i and then saves a plain step, if it arrives before the server gets
there by plain steps: i * step > age + round trip, where age is the time since the newest verdict. Levels n + 1 to D
cost a draft step each. Continue if for some D: step * sum of h^i over the levels in time > PRICE * draft_ms * (D - n),
and a new draft, whose frame the server has to read between its forwards, if it also saves FRAME_PRICE of a step.
Where plain steps take longer while the device drafts (they share a core), the price is that much higher.
A level less likely than h^i = what the server asks of a node is left to it: a server with many users has better uses
for its time. Each verdict says what that is, so no draft is made to hear it.
h is the upper bound of the acceptance, so a drafter that failed long ago is tried again; so is one that was slow.

Blocks. The levels of a block cost one draft step together, and end with it. None is begun while more than half of one
is in flight: a verdict takes a draft whole, mostly, or breaks it, and the new block with it (docs/adr/0057).

Frames. The server reads a draft when a step begins, so nodes may wait for each other: with s nodes sent for each token
of the text, frames of n nodes cost s * (FRAME_BYTES / n + NODE_BYTES) a token; n is the smallest that keeps the budget.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.drafting.estimates import Smoothed, TreeAcceptance
from moa_shared.drafting.growing import Growth
from moa_shared.tree import DraftTree

# What the user pays for the device's work: a millisecond of drafting must save a fifth of a millisecond of waiting. It
# is a preference, not a measurement; from 0.05 to 0.2 the speed is the same within 2 % (docs/adr/0011).
PRICE = 0.2
# Of a step, that a new draft must save: reading its frame takes the server 2 %, so a drafter that is never right and
# is retried now and then costs a user almost nothing.
FRAME_PRICE = 0.1
# Plain steps that take this much longer while the device drafts show that both share a core; less is noise.
FIGHT = 1.2
LEAST_BUSY = 2  # such steps before that is accepted
RETRY_STEPS = 20.0  # plain steps without a draft step, after which its measured time is too old
MOST_LEVELS = 64  # of a draft in flight: 3 s of plain steps, twice the longest round trip that an answer survives
# A Draft frame with its headers (HTTP/2 9, gRPC 5, protobuf 4 or 14) has 18 to 28 bytes without its nodes. It counts
# for more, because the server takes as long for a small frame as for a large one.
FRAME_BYTES = 32.0
NODE_BYTES = 2.3  # token id: 2 bytes below 16,384, where frequent tokens are, 3 above
PARENT_BYTES = 1.0  # in trees
MOST_FRAME_NODES = 16  # where the budget cannot be kept (a server far slower than the drafter): 80 ms of drafting

# Of the 40 and 120 a token that may be sent up in all; credits, beats and HTTP/2 take the rest.
CHAIN_BYTES, TREE_BYTES = 34.0, 105.0


class DraftWindow:
    """A `DraftRule` for `OnlineDrafting` that follows the measurements of one conversation.

    Args:
        bytes_a_token: of drafts that may be sent up for each token of the text: CHAIN_BYTES or TREE_BYTES.
        plain_ms: time of a plain step without drafting, as the server reports; 0: not known.
        block_levels: levels that come with one step, and the most that a draft has; None: each level takes a step.
    """

    def __init__(
        self,
        bytes_a_token: float = CHAIN_BYTES,
        *,
        plain_ms: float = 0.0,
        block_levels: int | None = None,
    ) -> None:
        self.acceptance = TreeAcceptance()
        self.rtt_ms = Smoothed()
        self.draft_ms = Smoothed()
        self.step_ms = Smoothed()  # of a plain step, as closely as verdicts show
        self._quiet_ms = Smoothed(plain_ms)  # of plain steps while the device rested
        self._busy_ms = Smoothed()  # and while it drafted
        self._is_drafting = self._has_drafted = False  # now; since the newest verdict
        self._bytes_a_token = bytes_a_token
        self._in_blocks = block_levels is not None
        self._most_levels = min(MOST_LEVELS, block_levels or MOST_LEVELS)
        self._most_held = (block_levels + 1) // 2 if block_levels else MOST_LEVELS - 1
        self._sent_nodes = Smoothed(1.0, weight=1 / 32)  # for each token of the text
        self._sent = 0
        self._verdict_ms = 0.0
        self._drafted_ms = 0.0
        self._least_chance = 0.0  # that a node must have to be verified

    def take_over(self, before: DraftWindow) -> None:
        """Takes over what another drafter's window has measured of server and link."""
        self.rtt_ms, self.step_ms, self._quiet_ms = before.rtt_ms, before.step_ms, before._quiet_ms

    def forget_server(self) -> None:
        """What follows is measured of another server."""
        self.rtt_ms, self.step_ms, self._quiet_ms = Smoothed(), Smoothed(), Smoothed()
        self._busy_ms = Smoothed()
        self._least_chance = 0.0

    def on_verdict(
        self,
        now_ms: float,
        draft: DraftTree,
        tokens: Sequence[int],
        *,
        step_ms: float,
        verified: int,
        least_chance: float = 0.0,
        blind: bool = False,
    ) -> None:
        """Takes in a verdict.

        Args:
            draft: what hung below the newest committed token before it.
            tokens: newly committed.
            step_ms: time of the server's forward; `verified`: draft nodes in it.
            least_chance: that a node must have to be worth verifying, as the server says.
            blind: rows of the prompt are missing: the draft says nothing about the drafter.
        """
        self._verdict_ms = now_ms
        self._least_chance = least_chance
        if step_ms > 0 and (not verified or not self.step_ms.samples):
            self.step_ms.add(step_ms)
        if step_ms > 0 and not verified and not blind:
            (self._busy_ms if self._is_drafting or self._has_drafted else self._quiet_ms).add(step_ms)
        self._has_drafted = False
        for _ in tokens:
            self._sent_nodes.add(self._sent / len(tokens))
        if tokens:
            self._sent = 0
        if not blind:
            self.acceptance.learn(draft, tokens)

    def on_drafted(self, now_ms: float, took_ms: float | None) -> None:
        """Takes in the end of a draft step; `took_ms`: None if its time is not typical."""
        self._drafted_ms = now_ms
        self._is_drafting, self._has_drafted = False, True
        if took_ms is not None:
            self.draft_ms.add(took_ms)

    def on_overtaken(self, growth: Growth, tokens: Sequence[int]) -> None:
        """Takes in the first step of a draft that committed tokens have overtaken: no verdict has judged it.

        Only of blocks, of which nothing else may ever come in time; any other step is overtaken now and then.
        """
        if self._in_blocks and tokens:
            self.acceptance.learn(DraftTree(growth.tokens, growth.parents), tokens)

    def on_sent(self, nodes: int) -> None:
        self._sent += nodes

    @property
    def price(self) -> float:
        """What a millisecond of drafting must save, in milliseconds."""
        quiet_ms, busy_ms = self._quiet_ms.mean, self._busy_ms.mean
        if self._busy_ms.samples < LEAST_BUSY or quiet_ms <= 0 or busy_ms < FIGHT * quiet_ms:
            return PRICE
        return PRICE + 1 - quiet_ms / busy_ms

    @property
    def is_priced_out(self) -> bool:
        """Whether no node of this device's is likely enough for what the server asks of one."""
        return self.acceptance.level.high < self._least_chance

    def may_grow(self, draft: DraftTree, now_ms: float) -> bool:
        grows = self._is_worth(draft, now_ms)
        self._is_drafting = self._is_drafting or grows
        return grows

    def _is_worth(self, draft: DraftTree, now_ms: float) -> bool:
        levels = max(draft.depths, default=0)
        if levels > self._most_held:
            return False
        hit = self.acceptance.level.high
        if hit ** (levels + 1) < self._least_chance:
            return False
        if not (self.draft_ms.samples and self.step_ms.samples):
            return True
        draft_ms, step_ms = self.draft_ms.mean, self.step_ms.mean
        if not levels and now_ms > self._drafted_ms + RETRY_STEPS * step_ms:
            return True
        late_ms = now_ms - self._verdict_ms + self.rtt_ms.mean
        price = self.price
        if price > PRICE:
            step_ms = self._quiet_ms.mean  # the time of a step if nothing were drafted
        gain = 0.0 if levels else -FRAME_PRICE * step_ms
        for more in range(1, self._most_levels - levels + 1):
            level, took_ms = levels + more, draft_ms if self._in_blocks else draft_ms * more
            if level * step_ms > late_ms + took_ms:
                gain += step_ms * hit**level
            if gain > price * took_ms:
                return True
        return False

    def may_send(self, draft: DraftTree, unsent: int, *, flush: bool = False) -> bool:
        """Whether the newest `unsent` nodes of this draft should go now, rather than with the next ones."""
        return flush or unsent >= self.frame_nodes(chain=draft.is_chain)

    def frame_nodes(self, *, chain: bool) -> int:
        """Nodes that a frame waits for."""
        a_node = NODE_BYTES if chain else NODE_BYTES + PARENT_BYTES
        nodes = self._sent_nodes.mean
        left = self._bytes_a_token - nodes * a_node
        if left * MOST_FRAME_NODES <= nodes * FRAME_BYTES:
            return MOST_FRAME_NODES
        return max(1, -int(-nodes * FRAME_BYTES // left))

"""The draft that waits for the target, one forward for one session, and the walk that verifies a draft. Pure.

A draft node is accepted if the target chose its token after accepting its parent (speculative sampling with the
target's own coupled choices: docs/adr/0001-text-is-a-function-of-the-seed.md).

State of the draft: the newest (epoch, base), the nodes below it, and the node that the committed tokens have reached;
those numbered before that node are forgotten, so that a draft which is always confirmed may continue for ever.
Invariants: the tree hangs below a prefix whose hash was checked; `reached` committed tokens lead to `node`. A node that
arrives after its token was committed is still followed, so what comes below it counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared.errors import ConfigError, ProtocolError
from moa_shared.protocol.messages import Draft, Finish, FinishRule
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.coupling import permitted, process_logits, select
from moa_shared.sampling.scores import Scores, TextBefore, largest, log_softmax
from moa_shared.sampling.settings import Sampling, TokenChances, WantedChances
from moa_shared.tree import ROOT, DraftTree, StreamedTree, check_parents, longest_path

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import Allowed, ConstrainedText

FRAME_NODES = 4096  # accepted of one frame: 4 ms of the event loop, two minutes of a device's standalone text
MOST_NODES = 65_536  # of one draft in flight: bounds what a hostile client makes us hold (10 MB)

NO_DRAFT = DraftTree((), ())


class PendingDraft:
    def __init__(self) -> None:
        self.epoch = 0
        self.stale_nodes = 0  # since the last call of take_stale()
        self.clear()

    def clear(self) -> None:
        """Drops the draft (a new turn, a cancelled answer); the epoch stays."""
        self._begin(0)

    def _begin(self, base: int) -> None:
        self._base = base  # 0: no draft
        self._tree = StreamedTree()
        self._node = ROOT
        self._reached = base
        self._below: tuple[int, DraftTree] | None = None  # how many were asked for, and the tree of them, if known

    def add_frame(self, committed: Sequence[int], hashes: PrefixHashes, draft: Draft) -> bool:
        """Adds a Draft frame; True if it named a state that holds (even if nothing of it is new).

        A frame of an older epoch or base, for a base beyond what is committed, with another prefix, or that leaves a
        gap in the numbering is stale: its nodes are counted and dropped, and so are those beyond the first FRAME_NODES
        of a frame. A repeated frame changes nothing. A frame that continues the held draft may leave out the hash
        (0), which its first frame gave.
        """
        tokens, parents, first_node, base = draft.tokens, draft.parents, draft.first_node, draft.base
        if parents and len(parents) != len(tokens):
            raise ProtocolError("one parent for each token of a draft, or none", f"{len(parents)} for {len(tokens)}")
        same = (draft.epoch, base) == (self.epoch, self._base)
        holds = (draft.epoch, base) >= (self.epoch, self._base) and 1 <= base <= len(committed)
        continues = same and not draft.prefix_hash and first_node > 0
        if not holds or not (continues or hashes.short_at(base) == draft.prefix_hash):
            self.stale_nodes += len(tokens)
            return False
        known = self._tree.end if same else 0
        forgotten = self._tree.first if same else 0
        if first_node > known or first_node + len(tokens) - forgotten > MOST_NODES:
            self.stale_nodes += len(tokens)
            return False
        count = min(len(tokens), FRAME_NODES)
        numbered = _number_parents(first_node, count, parents)
        if not same:
            self.epoch = draft.epoch
            self._begin(base)
        self.stale_nodes += len(tokens) - count
        self._below = None
        for index in range(known - first_node, count):
            self._tree.append(tokens[index], numbered[index])
        new = range(known, self._tree.end)
        self.on_committed(committed)
        late = len(committed) - base  # nodes of this depth and less are where tokens are committed already
        self.stale_nodes += sum(not self.covers(committed) or self._tree.depth(node) <= late for node in new)
        return True

    def on_committed(self, committed: Sequence[int]) -> None:
        """Follows newly committed tokens down the tree as far as they lead."""
        while self._base and self._reached < len(committed):
            child = self._tree.child_with(self._node, committed[self._reached])
            if child is None:
                break
            self._node, self._below = child, None
            self._reached += 1
        self._tree.forget(self._node)

    def covers(self, committed: Sequence[int]) -> bool:
        """Whether a draft, even an empty one, names the newest committed token."""
        return self._base > 0 and self._reached == len(committed)

    def usable(self, committed: Sequence[int], most: int = MOST_NODES) -> DraftTree:
        """The first `most` nodes below the newest committed token."""
        if not self.covers(committed):
            return NO_DRAFT
        if self._below is None or self._below[0] != most:
            self._below = most, self._tree.below(self._node, most)[0]
        return self._below[1]

    def take_stale(self) -> int:
        """Nodes that came too late since the last call."""
        stale, self.stale_nodes = self.stale_nodes, 0
        return stale


def _number_parents(first_node: int, count: int, parents: Sequence[int]) -> list[int]:
    """The parents of a frame's first `count` nodes."""
    numbered = list(parents[:count]) or [first_node + index - 1 for index in range(count)]
    check_parents(numbered, first_node)
    return numbered


MOST_FORCED = 16  # nodes of a tree with tokens that a form forces: most names of fields are shorter


@dataclass(frozen=True, slots=True)
class Verification:
    """What a forward decided."""

    kept: tuple[int, ...]  # nodes of the verified tree whose KV stays, from the root down
    taken: tuple[int, ...]  # new committed tokens: accepted drafts and the bonus token, as far as the answer goes
    accepted: int  # how many of them were drafted
    finish: Finish  # whether and why the answer ends with them
    own_accepted: int = 0  # how many of them only the server guessed
    chances: tuple[TokenChances, ...] = ()  # of each of them, where they are wanted


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One forward for one session."""

    version: int  # of the session when it was made
    cached: int  # tokens that the KV cache must hold before it
    feed: tuple[int, ...]  # committed tokens to feed as a chain
    tree: DraftTree  # draft nodes that hang below the last of them
    chooses: bool  # False for a chunk of a prompt, which chooses nothing
    rule: FinishRule  # of the answer, its sampling within the conversation
    answer: tuple[int, ...]  # its newest tokens, as many as decide its end
    before: int = 0  # tokens of the answer before these
    cache_version: int = 0  # of the session when it was made
    # The session's own list of tokens when it was made; it may have grown since, and is never cut.
    text: list[int] = field(default_factory=list, repr=False)
    own_nodes: int = 0  # how many nodes, the last ones of `tree`, only the server guessed
    form: ConstrainedText | None = field(default=None, repr=False)  # of the answer; only the forward touches it
    needs_draft: bool = False  # it is worth a forward only if it verifies nodes
    given: tuple[int, ...] = ()  # the answer's tokens at each position, where the target does not choose them
    leaves_checkpoint: bool = False  # of recurrent states, after the last of `feed`

    def with_forced(self) -> StepPlan:
        """The same step with the tokens that the form forces, as nodes of the server; itself where there are none."""
        if self.form is None or not self.chooses or self.form.is_slow:
            return self
        try:
            self._advance(self.form)
        except ConfigError:
            return self  # the forward says so, which fails for this session alone
        room = max(0, min(MOST_FORCED - len(self.tree), self.rule.context_tokens - self.fed - 1))
        tree = self.tree.with_path(self.form.forced()[:room])
        return self.extend(tree, self.own_nodes + len(tree) - len(self.tree))

    @property
    def form_is_slow(self) -> bool:
        """Whether its form may take longer than a forward, so that it verifies no draft."""
        return self.form is not None and self.form.is_slow

    @property
    def form_needs_time(self) -> bool:
        """Whether to find what its form allows before a forward, apart from it."""
        return self.form is not None and self.chooses and self.form.needs_time(self.fed - self.rule.answer_start)

    def without_draft(self) -> StepPlan:
        """The same step, which verifies nothing."""
        return replace(self, tree=NO_DRAFT, own_nodes=0, needs_draft=False)

    def allowed(self) -> Allowed | None:
        """Which tokens the target may choose at each position, [positions, vocabulary]; None: any."""
        if self.form is None or not self.chooses:
            return None
        self._advance(self.form)
        return self.form.allowed(self.tree)

    def _advance(self, form: ConstrainedText) -> None:
        """Has the form read what is committed of the answer."""
        form.advance(self.text[self.rule.answer_start + form.read : self.fed])

    def pick(self, tree: DraftTree) -> StepPlan | None:
        """The same step with these nodes only, a part of `tree`; None: without the others it is not worth a forward."""
        if self.needs_draft and not tree:
            return None
        return self if tree is self.tree else replace(self, tree=tree)

    def extend(self, tree: DraftTree, own_nodes: int) -> StepPlan:
        """The same step with nodes of the server, which are the last of `tree`."""
        return replace(self, tree=tree, own_nodes=own_nodes)

    @property
    def sampling(self) -> Sampling:
        return self.rule.settings.sampling

    @property
    def text_before(self) -> TextBefore | None:
        """The text before each token that the target chooses; None where the choice does not depend on it."""
        sampling, fed = self.sampling, self.fed
        if not sampling.reads_text:
            return None
        return TextBefore(self.text[fed - sampling.looks_back(fed) : fed], [(), *self.tree.paths])

    @property
    def fed(self) -> int:
        """Tokens that the KV cache holds after it, without draft nodes."""
        return self.cached + len(self.feed)

    @property
    def positions(self) -> list[int]:
        """Positions of the tokens that the target chooses: after the last of `feed`, then after each node."""
        root = self.fed
        return [root] + [root + depth for depth in self.tree.depths]

    def choose_tokens(self, logits: Scores, allowed: Allowed | None) -> Verification:
        """What the target chooses, with its chances where they are wanted.

        `logits`: [positions, vocab]. `allowed`: what `allowed` gives.
        """
        positions, before, wanted = self.positions, self.text_before, self.rule.settings.chances
        if self.given:
            verification = replace(self.verify(self.given), accepted=0)
        else:
            verification = self.verify(select(logits, positions, self.sampling, before, allowed))
        if wanted is None:
            return verification
        rows = [0, *(1 + node for node in verification.kept)]
        if before is not None:
            before = TextBefore(before.tokens, [before.paths[row] for row in rows])
        chances = chances_of(
            logits[rows],
            verification.taken,
            [positions[row] for row in rows],
            wanted,
            self.sampling,
            before,
            None if allowed is None else allowed[rows],
        )
        return replace(verification, chances=chances)

    def verify(self, chosen: Sequence[int]) -> Verification:
        """Walks the tree along the target's choices (after the last of `feed`, then after each node)."""
        path, bonus = longest_path(self.tree, chosen[0], chosen[1:])
        drafted = [self.tree.tokens[node] for node in path]
        taken, finish = self.rule.cut(self.answer, [*drafted, bonus], self.before)
        accepted = path[: len(taken)]
        own = len(self.tree) - self.own_nodes
        return Verification(
            kept=tuple(path[: len(taken) - 1]),
            taken=tuple(taken),
            accepted=len(accepted),
            finish=finish,
            own_accepted=sum(node >= own for node in accepted),
        )


def chances_of(
    logits: Scores,
    chosen: Sequence[int],
    positions: Sequence[int],
    wanted: WantedChances,
    sampling: Sampling,
    before: TextBefore | None = None,
    allowed: npt.NDArray[np.bool_] | None = None,
) -> tuple[TokenChances, ...]:
    """The chances of the token chosen from each row; arguments as of `select`. What cannot follow is not told."""
    if wanted.processed:
        scores = process_logits(permitted(logits, positions, sampling, before, allowed), sampling)
    else:
        scores = log_softmax(logits)
    own = scores[np.arange(len(chosen)), list(chosen)].tolist()
    if not wanted.likeliest:
        return tuple(TokenChances(each) for each in own)
    values, tokens = largest(scores, min(wanted.likeliest, scores.shape[-1]))
    possible = np.isfinite(values).sum(-1).tolist()  # the likeliest come first
    return tuple(
        TokenChances(each, tuple(of[:count]), tuple(theirs[:count]))
        for each, of, theirs, count in zip(own, tokens.tolist(), values.tolist(), possible, strict=True)
    )

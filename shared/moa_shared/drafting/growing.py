"""A draft that grows step by step while verdicts prune it: best first, in any drafter's order of likelihood.

State: the nodes that the drafter knows, with their candidates, below the newest committed token. A candidate is a node
that was not yet given out, or is no longer part of the draft. Invariant: whatever draft is passed, the nodes given out
hang below it and are what the drafter says there; what was computed for unchanged nodes is not computed again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moa_shared.drafting.drafts import ConversationDrafter, Drafter
from moa_shared.drafting.estimates import DrafterTrial, WrittenToken, likelier
from moa_shared.drafting.guesses import LEAST_SURVIVAL, SHORTEST_STANDALONE, UNLIKELY, GuessNode, GuessTree, TextGuesser
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText


@dataclass(frozen=True, slots=True)
class Growth:
    """New nodes below a draft."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()  # nodes of the draft (-1: the newest committed token), and after these the new ones


@dataclass(frozen=True, slots=True)
class GrowthShape:
    breadth: int = 8  # candidates of each expanded node, and nodes expanded per step; 1: a chain
    nodes: int = 64  # the most nodes of a draft in flight; 64 are what a server verifies at once
    survival: float = LEAST_SURVIVAL  # least chance, as the drafter sees it, of a node and all before it


CHAIN = GrowthShape(breadth=1, nodes=1 << 20, survival=0.0)


class GrowingDraft:
    """One conversation's draft in flight.

    `drafter` learns of committed tokens only through `commit`; `guesser`, of the same conversation, from the caller.
    """

    def __init__(self, drafter: Drafter, shape: GrowthShape, guesser: TextGuesser | None = None) -> None:
        self._shape = shape
        self._floor = math.log(shape.survival) if shape.survival > 0 else -math.inf
        self.tree = GuessTree(drafter, shape.breadth, guesser)
        self._held = 0  # nodes that the drafter holds
        self._written: tuple[DraftTree, GuessNode] | None = None  # the newest draft of standalone text, and its leaf

    def follow(self, form: ConstrainedText | None) -> None:
        """Guesses only what is of a form from now on, which is that of the text after the newest committed token."""
        if form is not self.tree.form:
            self.forget()
            self.tree.form = form

    def forget(self, *, text_stays: bool = False) -> None:
        """Forgets all nodes; where the text stays `choices_along` still knows what the drafter has said."""
        self._written = None
        self.tree.forget(text_stays=text_stays)

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens; what hangs below the last of them stays."""
        kept = self.tree.drafter.extend(tokens)
        if kept is None or not self.tree.advance(tokens, kept):
            self.forget()
        else:
            self._held, self._written = len(kept), None

    def grow_on(self, draft: DraftTree, sampling: Sampling) -> Growth:
        """One step of the drafter (of blocks: a whole one): what is worth adding to `draft`; empty if nothing is."""
        nodes = self._looked_below(draft, sampling, self._floor)
        while len(draft) < self._shape.nodes:
            best = self._best_open(nodes)
            if best:
                self._expand(best)
            growth = self._growth(nodes, self._floor)
            if growth.tokens or not best:
                return growth
        return Growth()

    def offer(self, draft: DraftTree, sampling: Sampling, least: float = 0.0) -> Growth:
        """What is worth adding to `draft` without a step of the drafter; `least`: chance that a node must have."""
        floor = max(self._floor, math.log(least)) if least > 0 else self._floor
        return self._growth(self._looked_below(draft, sampling, floor), floor)

    def chances(self, draft: DraftTree, sampling: Sampling) -> tuple[float, ...]:
        """The chance of each node that the text goes through it, as it is seen now; never more than its parent's."""
        return tuple(math.exp(node.score - self.tree.root.score) for node in self._place(draft, sampling)[1:])

    def reach(self, draft: DraftTree, sampling: Sampling) -> float:
        """The chance, as the drafter sees it, that `expand` looks at the place where the text leaves what is known."""
        best, root = self._next_to_expand(self._place(draft, sampling)), self.tree.root
        return sum(math.exp(node.score - root.score) * node.uncovered for node in best)

    def expand(self, draft: DraftTree, sampling: Sampling) -> None:
        nodes = self._next_to_expand(self._place(draft, sampling))
        self._expand([node for node in nodes if node is not self.tree.root])

    def next_token(
        self, draft: DraftTree, sampling: Sampling, barred: Collection[int] = (), *, copies: bool = True
    ) -> WrittenToken:
        """What to write after the newest node: the drafter's choice or, with `copies`, the text's if likelier."""
        leaf = self._leaf(draft, sampling)
        if not leaf.expanded:
            self._expand([leaf])
        own = self._own_choice(leaf, barred)
        ahead, form = self.tree.ahead(leaf), self.tree.form
        guesser = self.tree.guesser if copies else None
        copied = guesser.copied(ahead, SHORTEST_STANDALONE) if guesser is not None else None
        if copied is not None and (copied[0] in barred or (form and not form.permitted(ahead, [copied[0]]))):
            copied = None
        written = likelier(own, copied)
        if written.token not in leaf.children:
            leaf.add(written.token, written.log_chance)
        return written

    def _own_choice(self, leaf: GuessNode, barred: Collection[int]) -> tuple[int, float]:
        allowed = [c for token, c in leaf.children.items() if token not in barred and c.said > -math.inf]
        spare = next((pair for pair in leaf.spare if pair[0] not in barred), None)
        if not allowed and spare is not None:
            token, step = spare
            leaf.children.pop(token, None)
            allowed = [leaf.add(token, step, said=step)]
        if not leaf.children and self.tree.form is not None:  # the drafter has no column for what the form allows
            return int(self.tree.form.allowed_after([self.tree.ahead(leaf)])[0].argmax()), UNLIKELY
        best = max(allowed or leaf.children.values(), key=lambda child: child.said)
        return best.token, best.said

    def _leaf(self, draft: DraftTree, sampling: Sampling) -> GuessNode:
        """The newest node of a draft; that of the one before with one token more is at hand."""
        leaf = None
        if self._written is not None and sampling == self.tree.sampling and draft:
            before, node = self._written
            goes_on = before.tokens == draft.tokens[:-1] and (*before.parents, len(before) - 1) == draft.parents
            leaf = node.children.get(draft.tokens[-1]) if goes_on else None
        if leaf is None:
            leaf = self._place(draft, sampling)[-1]
        self._written = draft, leaf
        return leaf

    def _place(self, draft: DraftTree, sampling: Sampling, floor: float | None = None) -> list[GuessNode]:
        if sampling != self.tree.sampling:
            self.forget()
            self.tree.sampling = sampling
        return self.tree.place(draft, self._floor if floor is None else floor)

    def _looked_below(self, draft: DraftTree, sampling: Sampling, floor: float) -> list[GuessNode]:
        nodes = self._place(draft, sampling, floor)
        for node in nodes:
            self.tree.look(node, floor)
        return nodes

    def _is_open(self, node: GuessNode) -> bool:
        """Whether the drafter may be asked what follows a node: it has not been, and the draft need not end there."""
        most = self.tree.drafter.most_depth or math.inf
        return not node.expanded and not node.is_forced_on and node.depth - self.tree.root.depth < most

    def _open_freely(self, nodes: Iterable[GuessNode]) -> None:
        """Gives candidates to nodes where that takes no step, since the block under way says what follows them."""
        if self.tree.drafter.most_depth is not None and self.tree.root.expanded:
            self._expand([node for node in nodes if self._is_open(node)])

    def _best_open(self, nodes: Sequence[GuessNode]) -> list[GuessNode]:
        if self._shape.breadth == 1:
            return [node for node in nodes[-1:] if self._is_open(node)]
        least = self.tree.root.score + self._floor
        open_nodes = [node for node in nodes if self._is_open(node) and node.score >= least]
        return heapq.nlargest(self._shape.breadth, open_nodes, key=lambda node: node.score)

    def _next_to_expand(self, nodes: Sequence[GuessNode]) -> list[GuessNode]:
        root = self.tree.root
        return self._best_open(nodes) if root.expanded or root.is_forced_on else [root]

    def _expand(self, nodes: Sequence[GuessNode]) -> None:
        """Gives candidates to these nodes, and to those above them that have none."""
        tree, root = self.tree, self.tree.root
        if not root.expanded:
            tree.add_candidates([root], tree.drafter.begin())
            root.state_number = ROOT
            self._held = 0
        wanted: dict[int, GuessNode] = {}
        for node in nodes:
            at: GuessNode | None = node
            while at is not None and not at.expanded and id(at) not in wanted:
                wanted[id(at)], at = at, at.parent
        batch = sorted(wanted.values(), key=lambda node: node.depth)
        if not batch:
            return
        for number, node in enumerate(batch, self._held):
            node.state_number = number
        self._held += len(batch)
        parents = [node.parent.state_number if node.parent is not None else ROOT for node in batch]
        tree.add_candidates(batch, tree.drafter.expand([node.token for node in batch], parents))

    def _growth(self, nodes: Sequence[GuessNode], floor: float) -> Growth:
        """The best candidates below the draft of these nodes (the root first), best first, as far as there is room."""
        room = self._shape.nodes - (len(nodes) - 1)
        if self._shape.breadth == 1:
            return self._next_of_chain(nodes[-1], room, floor)
        tree, order = self.tree, count()
        least = tree.root.score + floor

        def candidates(node: GuessNode) -> list[tuple[float, int, GuessNode]]:
            return [
                (-child.score, next(order), child)
                for child in node.children.values()
                if child.call != tree.call and child.score >= least and child.step > -math.inf
            ]

        self._open_freely(nodes)
        heap = [candidate for node in nodes for candidate in candidates(node)]
        heapq.heapify(heap)
        given: list[GuessNode] = []
        while heap and len(given) < room:
            if not heap[0][2].expanded:  # with those that come next, mostly: together they take less time
                self._open_freely(node for _, _, node in heapq.nsmallest(self._shape.breadth, heap))
            _, _, node = heapq.heappop(heap)
            node.call, node.number = tree.call, len(nodes) - 1 + len(given)
            given.append(node)
            tree.look(node, floor)  # it may have been too unlikely when those above it were looked at
            for candidate in candidates(node):
                heapq.heappush(heap, candidate)
        return Growth(
            tuple(node.token for node in given),
            tuple(ROOT if node.parent is None else node.parent.number for node in given),
        )

    def _next_of_chain(self, node: GuessNode, room: int, floor: float) -> Growth:
        """The best candidate after a node, and what follows without a step: forced, or likely in a block."""
        tokens: list[int] = []
        first, in_blocks = node.number, self.tree.drafter.most_depth is not None
        least = self.tree.root.score + math.log(LEAST_SURVIVAL) if in_blocks else -math.inf
        while len(tokens) < room and node.children:
            if tokens and not node.is_forced_on and not (in_blocks and node.expanded):
                break
            node = max(node.children.values(), key=lambda child: child.step)
            if node.score < least:
                break
            tokens.append(node.token)
            self.tree.look(node, floor)
            self._open_freely([node])
        return Growth(tuple(tokens), tuple(range(first, first + len(tokens))))


class ConversationDraft(GrowingDraft):
    """The draft of one conversation, whose drafter has a state, and whose guesser learns what is committed."""

    def __init__(
        self,
        new_state: Callable[[], ConversationDrafter],
        shape: GrowthShape,
        guesser: TextGuesser | None = None,
        trial: DrafterTrial | None = None,
    ) -> None:
        self._new_state, self._trial = new_state, trial
        self.state = new_state()
        super().__init__(self.state, shape, guesser)

    def restart(self, tokens: Sequence[int]) -> int:
        """Sets the tokens of the conversation; how many of them the drafter knew."""
        pairs = zip(self.state.tokens, tokens, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if common:
            self.state.crop(common)
        else:
            self.state = self.tree.drafter = self._new_state()
        self.forget()
        super().commit(tokens[common:])
        if self.tree.guesser is not None:
            self.tree.guesser.restart(tokens)
        return common

    def commit(self, tokens: Sequence[int]) -> None:
        if (guesser := self.tree.guesser) is not None:
            if self._trial is not None and self._trial.is_open:
                for index, choice in enumerate(self.tree.choices_along(tokens)):
                    copied = guesser.copied(tokens[:index], 1)
                    if choice is not None:
                        self._trial.add(tokens[index], choice[0], copied[0] if copied is not None else None)
            guesser.extend(tokens)
        super().commit(tokens)

    def drop(self) -> None:
        """Forgets what was computed of a draft, which may be large, but for the choices that a trial judges."""
        self.forget(text_stays=True)
        self.state.crop(self.state.next_position)

    def write(
        self, written: DraftTree, sampling: Sampling, *, guarded: bool = True, copies: bool = True
    ) -> WrittenToken:
        """The next token of standalone text.

        `written`: the text since the newest committed token, a chain. `guarded`: no run of tokens occurs in it a second
        time (`barred_after`). `copies`: what the conversation has after the same tokens is written if it is likelier.
        """
        return self.next_token(written, sampling, barred_after(written.tokens) if guarded else (), copies=copies)

    def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
        if state:
            self.state.append_reused_state(start, rows)
        else:
            self.state.append_memory(start, rows)


# With runs of 4 the target's likelihood falls more, with 8 repetition is above the target's own.
def barred_after(written: Sequence[int], run: int = 6) -> frozenset[int]:
    """Tokens that would write a run of `run` tokens a second time after `written`."""
    newest, span = tuple(written[1 - run :]), run - 1
    starts = range(len(written) - span)
    return frozenset(written[at + span] for at in starts if tuple(written[at : at + span]) == newest)

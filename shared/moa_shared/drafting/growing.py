"""A draft that grows step by step while verdicts prune it: best first, in any drafter's order of likelihood.

State: the nodes that the drafter knows, with their candidates, below the newest committed token. A candidate is a node
that was not yet given out, or is no longer part of the draft. Invariant: whatever draft is passed, the nodes given out
hang below it and are what the drafter says there; what was computed for unchanged nodes is not computed again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import numpy.typing as npt

from moa_shared.drafting.base import GrowingDrafter, Rows, TextForm, TokenIds
from moa_shared.drafting.confidence import Guess, WrittenToken, likelier
from moa_shared.drafting.guesses import (
    LEAST_LOG_SURVIVAL,
    LEAST_SURVIVAL,
    MOST_PLACES,
    SHORTEST,
    SHORTEST_STANDALONE,
    TextGuesser,
)
from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class Growth:
    """New nodes below a draft.

    Args:
        parents: node numbers of the draft (-1: the newest committed token), continuing with the new nodes.
        copied: which of the tokens, counted from 0, were proposed only because earlier text goes on so.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()

    @classmethod
    def chain(cls, draft: DraftTree, tokens: Sequence[int], *, is_copy: bool = False) -> Growth:
        """Tokens that follow the newest node of a draft, one after the other."""
        newest, count = len(draft) - 1, len(tokens)
        return cls(tuple(tokens), tuple(range(newest, newest + count)), tuple(range(count)) if is_copy else ())


@dataclass(frozen=True, slots=True)
class GrowthShape:
    """How a draft grows.

    Args:
        breadth: candidates of each expanded node, and nodes expanded per step; 1: a chain.
        nodes: the most nodes of a draft in flight; 64 are what a server verifies at once.
        survival: least probability, as the drafter sees it, at which a node and all before it are worth verifying.
    """

    breadth: int = 8
    nodes: int = 64
    survival: float = LEAST_SURVIVAL


CHAIN = GrowthShape(breadth=1, nodes=1 << 20, survival=0.0)


SPARE = 8  # candidates beyond those that a draft may take, for text in which some are barred
_LEAST_STEP = -20.0  # log-score of what the form does not allow


@dataclass(eq=False, slots=True)
class _Node:
    token: int
    parent: _Node | None
    step: float  # its own log-score; -inf for what the drafter did not propose
    score: float  # sum of log-scores from the first root
    depth: int
    expanded: bool = False
    state_number: int = ROOT  # of an expanded node in the drafter
    children: dict[int, _Node] = field(default_factory=dict)
    number: int = -2  # in the draft of the call under way, where `call` is that call
    call: int = 0
    said: float = -math.inf  # the drafter's own log-score
    least: float = 0.0  # the least log-score among its candidates, for what is none of them
    spare: tuple[tuple[int, float], ...] = ()  # further tokens with their log-scores, best first
    looked: bool = False  # whether what the text suggests after it is among the children
    is_forced_on: bool = False  # the form leaves one token to follow it, its only child


@dataclass(frozen=True, slots=True)
class _Ranked:
    """The candidates of a row of logits: log-scores and tokens, [1, candidates]."""

    logits: Rows
    best: Rows
    tokens: TokenIds


class GrowingDraft:
    """One conversation's draft in flight.

    Args:
        drafter: learns of committed tokens only through `commit`, so that both agree on what is left of a draft.
        guesser: of the same conversation, given its tokens by the caller; merged with the drafter's candidates.
    """

    def __init__(self, drafter: GrowingDrafter, shape: GrowthShape, guesser: TextGuesser | None = None) -> None:
        self._drafter = drafter
        self._guesser = guesser
        self._shape = shape
        self._floor = math.log(shape.survival) if shape.survival > 0 else -math.inf
        self._sampling = Sampling()
        self._root = _Node(-1, None, 0.0, 0.0, 0)
        self._said = self._root  # below it are the choices of a draft that was dropped before its text went on
        self._call = 0
        self._held = 0  # nodes that the drafter holds
        self._written: tuple[DraftTree, _Node] | None = None  # the newest draft of standalone text, and its leaf
        self._ranked: dict[int, _Ranked] = {}  # of the block under way, by position
        self._form: TextForm | None = None

    def follow(self, form: TextForm | None) -> None:
        """Guesses only what is of a form from now on; None: whatever there is.

        Args:
            form: of the text after the newest committed token, whenever something is asked of this draft.
        """
        if form is not self._form:
            self.forget()
            self._form = form

    def forget(self) -> None:
        """Forgets all nodes: the drafter's draft was dropped, or is another one's."""
        self._written = None
        self._root = self._said = _Node(-1, None, 0.0, 0.0, 0)
        self._ranked.clear()

    def drop(self) -> None:
        """As `forget`, while the text stays: `choices_along` still knows what the drafter has said."""
        said = self._root
        self.forget()
        self._said = said

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens; what hangs below the last of them stays."""
        kept = self._drafter.extend(tokens)
        if kept is None:
            self.forget()
            return
        node: _Node | None = self._root
        for token in tokens:
            node = node.children.get(token) if node is not None else None
        if node is None or not node.expanded:  # the drafter says that it knows that node
            self.forget()
            return
        node.parent, node.state_number = None, ROOT
        self._root = self._said = node
        self._held, self._written = len(kept), None
        number = {former: now for now, former in enumerate(kept)}
        below = list(node.children.values())
        while below:
            child = below.pop()
            if child.expanded:
                child.state_number = number[child.state_number]
                below += child.children.values()

    def grow(self, draft: DraftTree, sampling: Sampling) -> Growth:
        """One step of the drafter: what is worth adding to `draft`, which hangs below the newest committed token.

        Of a drafter that guesses whole blocks, all that is likely enough of one. Empty if nothing is: all that is
        likely enough is there, or the draft is as large as it may be.
        """
        nodes = self._place(draft, sampling)
        self._look_below(nodes)
        while len(draft) < self._shape.nodes:
            best = self._best_open(nodes)
            if best:
                self._expand(best)
            growth = self._growth(nodes)
            if growth.tokens or not best:
                return growth
        return Growth()

    def offer(self, draft: DraftTree, sampling: Sampling, least: float = 0.0) -> Growth:
        """What is worth adding to `draft` by what is known already, without a step of the drafter.

        Args:
            least: chance that a node must have; what is less likely than the shape wants is never offered.
        """
        floor = self._floor
        self._floor = max(floor, math.log(least)) if least > 0 else floor
        try:
            nodes = self._place(draft, sampling)
            self._look_below(nodes)
            return self._growth(nodes)
        finally:
            self._floor = floor

    def chances(self, draft: DraftTree, sampling: Sampling) -> tuple[float, ...]:
        """The chance of each node that the text goes through it, as it is seen now; never more than its parent's."""
        return tuple(math.exp(node.score - self._root.score) for node in self._place(draft, sampling)[1:])

    def choices_along(self, tokens: Sequence[int]) -> list[Guess | None]:
        """The drafter's own first choice at each place that these tokens, about to be committed, go through.

        None where it was not asked, or had nothing to say.
        """
        choices: list[Guess | None] = []
        node: _Node | None = self._root if self._root.expanded else self._said
        for token in tokens:
            said = [child for child in node.children.values() if child.said > -math.inf] if node is not None else []
            best = max(said, key=lambda child: child.said, default=None)
            choices.append((best.token, best.said) if best is not None else None)
            node = node.children.get(token) if node is not None else None
        return choices

    def reach(self, draft: DraftTree, sampling: Sampling) -> float:
        """The chance, as the drafter sees it, that `expand` looks at the place where the text leaves what is known.

        0 if there is nothing to expand.
        """
        best = self._next_to_expand(self._place(draft, sampling))
        return sum(math.exp(node.score - self._root.score) * _uncovered(node) for node in best)

    def expand(self, draft: DraftTree, sampling: Sampling) -> None:
        """One step of the drafter below `draft`; `offer` gives what it has found."""
        nodes = self._next_to_expand(self._place(draft, sampling))
        self._expand([node for node in nodes if node is not self._root])

    def next_token(
        self, draft: DraftTree, sampling: Sampling, barred: Collection[int] = (), *, copies: bool = True
    ) -> WrittenToken:
        """What to write after the newest node of a draft: the drafter's own choice, or, with `copies`, what the
        conversation has after the same tokens if that is likelier; not one of `barred` if the drafter knows another.
        """
        leaf = self._leaf(draft, sampling)
        if not leaf.expanded:
            self._expand([leaf])
        own = self._own_choice(leaf, barred)
        ahead, form = self._ahead(leaf), self._form
        guesser = self._guesser if copies else None
        copied = guesser.copied(ahead, SHORTEST_STANDALONE) if guesser is not None else None
        if copied is not None and (copied[0] in barred or (form and not form.permitted(ahead, [copied[0]]))):
            copied = None
        written = likelier(own, copied)
        if written.token not in leaf.children:
            step = written.log_chance
            leaf.children[written.token] = _Node(written.token, leaf, step, leaf.score + step, leaf.depth + 1)
        return written

    # ------------------------------------------------------------ inside

    def _own_choice(self, leaf: _Node, barred: Collection[int]) -> tuple[int, float]:
        """The drafter's choice after an expanded node, and its log-chance."""
        allowed = [c for token, c in leaf.children.items() if token not in barred and c.said > -math.inf]
        spare = next((pair for pair in leaf.spare if pair[0] not in barred), None)
        if not allowed and spare is not None:
            token, step = spare
            child = leaf.children[token] = _Node(token, leaf, step, leaf.score + step, leaf.depth + 1, said=step)
            allowed = [child]
        if not leaf.children and self._form is not None:  # the drafter has no column for what the form allows
            return int(self._form.allowed_after([self._ahead(leaf)])[0].argmax()), _LEAST_STEP
        best = max(allowed or leaf.children.values(), key=lambda child: child.said)
        return best.token, best.said

    def _leaf(self, draft: DraftTree, sampling: Sampling) -> _Node:
        """The newest node of a draft; found at once if it hangs below the one before."""
        if self._written is not None and sampling == self._sampling and draft:
            before, node = self._written
            goes_on = before.tokens == draft.tokens[:-1] and before.parents == draft.parents[:-1]
            if goes_on and draft.parents[-1] == len(before) - 1 and draft.tokens[-1] in node.children:
                leaf = node.children[draft.tokens[-1]]
                self._written = draft, leaf
                return leaf
        leaf = self._place(draft, sampling)[-1]
        self._written = draft, leaf
        return leaf

    def _place(self, draft: DraftTree, sampling: Sampling) -> list[_Node]:
        """The root and the nodes of a draft."""
        if sampling != self._sampling:
            self.forget()
            self._sampling = sampling
        self._call += 1
        nodes = [self._root]
        self._root.call, self._root.number = self._call, ROOT
        for number, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = nodes[parent + 1]
            self._look(above)
            node = above.children.get(token)
            if node is None:  # another drafter's guess
                node = above.children[token] = _Node(token, above, -math.inf, above.score, above.depth + 1)
            node.score = above.score + (node.step if node.step > -math.inf else above.least)
            node.call, node.number = self._call, number
            nodes.append(node)
        return nodes

    def _look_below(self, nodes: Sequence[_Node]) -> None:
        for node in nodes:
            self._look(node)

    def _look(self, node: _Node) -> None:
        """Adds what the text suggests after a node, and after that, likeliest first, as far as it is likely enough."""
        if (self._guesser is None and self._form is None) or node.looked:
            return
        least = self._root.score + max(self._floor, LEAST_LOG_SURVIVAL)
        order = count()
        below = [(-node.score, next(order), node)]
        for _ in range(MOST_PLACES):
            if not below or -below[0][0] < least:
                return
            _, _, node = heapq.heappop(below)
            if node.looked:
                continue
            node.looked = True
            for token, log_chance in self._suggestions(node):
                child = node.children.get(token)
                if child is None:
                    child = _Node(token, node, log_chance, node.score + log_chance, node.depth + 1)
                    node.children[token] = child
                else:
                    child.step = max(child.step, log_chance)
                    child.score = max(child.score, node.score + log_chance)
                heapq.heappush(below, (-child.score, next(order), child))

    def _suggestions(self, node: _Node) -> list[tuple[int, float]]:
        """What form and text suggest after a node: tokens with their log-chances."""
        form, guesser, ahead = self._form, self._guesser, self._ahead(node)
        if form is not None and (forced := form.forced(ahead)):
            node.is_forced_on = True
            return [(forced[0], 0.0)]
        guesses = guesser.guesses(ahead) if guesser is not None else []
        if form is None or not guesses:
            return guesses
        permitted = form.permitted(ahead, [token for token, _ in guesses])
        return [guess for guess in guesses if guess[0] in permitted]

    def _ahead(self, node: _Node) -> list[int]:
        """The tokens from below the root down to a node."""
        ahead: list[int] = []
        above: _Node | None = node
        while above is not None and above is not self._root:
            ahead.append(above.token)
            above = above.parent
        ahead.reverse()
        return ahead

    def _is_open(self, node: _Node) -> bool:
        """Whether the drafter may be asked what follows a node: it has not been, and the draft need not end there."""
        most = self._drafter.most_depth
        return not node.expanded and not node.is_forced_on and (most is None or node.depth - self._root.depth < most)

    def _open_freely(self, nodes: Iterable[_Node]) -> None:
        """Gives candidates to nodes where that takes no step, since the block under way says what follows them."""
        if self._drafter.most_depth is not None and self._root.expanded:
            self._expand([node for node in nodes if self._is_open(node)])

    def _best_open(self, nodes: Sequence[_Node]) -> list[_Node]:
        """The draft's best unexpanded nodes that are worth a step."""
        if self._shape.breadth == 1:
            return [node for node in nodes[-1:] if self._is_open(node)]
        least = self._root.score + self._floor
        open_nodes = [node for node in nodes if self._is_open(node) and node.score >= least]
        return heapq.nlargest(self._shape.breadth, open_nodes, key=lambda node: node.score)

    def _next_to_expand(self, nodes: Sequence[_Node]) -> list[_Node]:
        """What a step of the drafter would look at: the root first."""
        root = self._root
        return self._best_open(nodes) if root.expanded or root.is_forced_on else [root]

    def _expand(self, nodes: Sequence[_Node]) -> None:
        """Gives candidates to these nodes, and to those above them that have none."""
        if not self._root.expanded:
            self._candidates([self._root], self._drafter.begin())
            self._root.state_number = ROOT
            self._held = 0
        wanted: dict[int, _Node] = {}
        for node in nodes:
            at: _Node | None = node
            while at is not None and not at.expanded and id(at) not in wanted:
                wanted[id(at)] = at
                at = at.parent
        batch = sorted(wanted.values(), key=lambda node: node.depth)
        if not batch:
            return
        for number, node in enumerate(batch, self._held):
            node.state_number = number
        self._held += len(batch)
        logits = self._drafter.expand(
            [node.token for node in batch],
            [node.parent.state_number if node.parent is not None else ROOT for node in batch],
        )
        self._candidates(batch, logits)

    def _candidates(self, nodes: Sequence[_Node], logits: npt.NDArray[np.float32]) -> None:
        first = self._drafter.next_position - self._root.depth
        positions, breadth = [first + node.depth for node in nodes], self._shape.breadth
        sampling, drafter, form = self._sampling, self._drafter, self._form
        paths = [self._ahead(node) for node in nodes] if sampling.reads_text or form is not None else []
        before = TextBefore(drafter.tokens, paths) if sampling.reads_text else None
        allowed = form.allowed_after(paths) if form is not None else None
        if drafter.most_depth is not None and before is None and allowed is None:
            best, tokens = self._ranked_once(logits, positions)
        else:
            best, tokens = draft_candidates(
                logits, positions, sampling, breadth + SPARE, drafter.token_ids, before, allowed
            )
        if allowed is not None:
            best = np.where(np.take_along_axis(allowed, tokens, axis=1), best, np.float32(-np.inf))
        for node, row_tokens, row_scores in zip(nodes, tokens.tolist(), best.tolist(), strict=True):
            node.expanded = True
            node.least = min(0.0, max(_LEAST_STEP, row_scores[:breadth][-1]))
            pairs = list(zip(row_tokens, row_scores, strict=True))
            node.spare = tuple((token, min(0.0, score)) for token, score in pairs[breadth:] if score > -math.inf)
            for token, score in pairs[:breadth]:
                if score == -math.inf:
                    break  # not allowed
                step = min(0.0, score)
                if (child := node.children.get(token)) is not None:
                    child.step = max(step, child.step)
                    child.score = max(node.score + step, child.score)
                else:
                    child = node.children[token] = _Node(token, node, step, node.score + step, node.depth + 1)
                child.said = step

    def _ranked_once(self, logits: Rows, positions: Sequence[int]) -> tuple[Rows, TokenIds]:
        """`draft_candidates` of rows of a block, which are mostly the same for all nodes of a level: looking through a
        large vocabulary for each would take longer than the block.
        """
        found: list[_Ranked] = []
        for row, position in zip(logits, positions, strict=True):
            ranked = self._ranked.get(position)
            if ranked is None or not np.array_equal(ranked.logits, row):
                count = self._shape.breadth + SPARE
                best, tokens = draft_candidates(row[None], [position], self._sampling, count, self._drafter.token_ids)
                if len(self._ranked) >= (self._drafter.most_depth or 0):  # of a text that goes on below its block
                    self._ranked.clear()
                ranked = self._ranked[position] = _Ranked(row, best, tokens)
            found.append(ranked)
        return np.concatenate([each.best for each in found]), np.concatenate([each.tokens for each in found])

    def _growth(self, nodes: Sequence[_Node]) -> Growth:
        """The best candidates below the draft of these nodes (the root first), best first, as far as there is room."""
        room = self._shape.nodes - (len(nodes) - 1)
        if self._shape.breadth == 1:
            return self._next_of_chain(nodes[-1], room)
        least = self._root.score + self._floor
        order = count()

        def candidates(node: _Node) -> list[tuple[float, int, _Node]]:
            return [
                (-child.score, next(order), child)
                for child in node.children.values()
                if child.call != self._call and child.score >= least and child.step > -math.inf
            ]

        self._open_freely(nodes)
        heap = [candidate for node in nodes for candidate in candidates(node)]
        heapq.heapify(heap)
        given: list[_Node] = []
        while heap and len(given) < room:
            if not heap[0][2].expanded:  # with those that come next, mostly: together they take less time
                self._open_freely(node for _, _, node in heapq.nsmallest(self._shape.breadth, heap))
            _, _, node = heapq.heappop(heap)
            node.call, node.number = self._call, len(nodes) - 1 + len(given)
            given.append(node)
            self._look(node)  # it may have been too unlikely when those above it were looked at
            for candidate in candidates(node):
                heapq.heappush(heap, candidate)
        return Growth(
            tuple(node.token for node in given),
            tuple(_number(node.parent) for node in given),
            tuple(index for index, node in enumerate(given) if self._is_copy(node)),
        )

    def _is_copy(self, node: _Node) -> bool:
        """Whether earlier text goes on with this node, which the drafter did not propose."""
        if self._guesser is None or node.said > -math.inf or node.parent is None:
            return False
        copied = self._guesser.copied(self._ahead(node.parent), SHORTEST)
        return copied is not None and copied[0] == node.token

    def _next_of_chain(self, node: _Node, room: int) -> Growth:
        """The best candidate after a node, and what follows it without a step: what the form forces, and of a block
        what is likely enough.
        """
        tokens: list[int] = []
        first, in_blocks = node.number, self._drafter.most_depth is not None
        least = self._root.score + LEAST_LOG_SURVIVAL if in_blocks else -math.inf
        while (
            len(tokens) < room and node.children and (not tokens or node.is_forced_on or (in_blocks and node.expanded))
        ):
            node = max(node.children.values(), key=lambda child: child.step)
            if node.score < least:
                break
            tokens.append(node.token)
            self._look(node)
            self._open_freely([node])
        return Growth(tuple(tokens), tuple(range(first, first + len(tokens))))


def _number(node: _Node | None) -> int:
    return ROOT if node is None else node.number


def _uncovered(node: _Node) -> float:
    """The chance that none of a node's known children is right."""
    return max(0.0, 1.0 - sum(math.exp(child.step) for child in node.children.values()))

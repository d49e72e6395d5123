"""Guesses that take no drafter, and the tree of what a drafter and the text say after each node of a draft.

Prompt look-up is what followed the last time that the newest tokens occurred in the conversation
(https://github.com/apoorvumang/prompt-lookup-decoding). State: the text, and how often the token after a run of each
length was what followed that run before; the nodes below the newest committed token, of which some are in the draft of
the call under way (`call`, `number`). What was computed for unchanged nodes is kept.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from moa_shared.drafting.drafts import Drafter, Rows, TokenIds
from moa_shared.drafting.estimates import Guess
from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import ROOT, DraftTree

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText

# Share of right guesses after runs of 1, 2, ... tokens in the default target's greedy answers (3,055 tokens to 28
# questions of seven kinds); the conversation's own count soon outweighs them.
_PRIOR = (0.23, 0.53, 0.63, 0.70, 0.76, 0.85)
_PRIOR_WEIGHT = 16.0
# A node costs the server 1 ms of 49 and some bytes, and saves a plain step if it survives.
LEAST_SURVIVAL = 0.02
LOOKUP_LONGEST = 3  # tokens that must agree, tried from the longest, in look-up's first description
SHORTEST = 2  # a single token that occurred before says too little
SHORTEST_STANDALONE = 4  # in standalone text, where a wrong token spoils all that follows and not one node (ADR 27)

LONGEST_CONTEXT = 3  # tokens
NO_TOKEN = -1  # fills the front of shorter contexts
CHANCE_STEPS = 255  # a chance is kept as so many parts of one
_TOKEN_BITS = 21  # of a token id in the number that stands for a context: a third of what tuples of them take


class NgramTable:
    """Tokens that often follow a context, with their chances; ValueError: arrays that do not fit together.

    Args:
        contexts: [contexts, LONGEST_CONTEXT] token ids, the newest last, after as many NO_TOKEN as are missing.
        counts: [contexts] uint8, how many tokens follow each.
        tokens, chances: [sum of counts] int32 and uint8 (in parts of CHANCE_STEPS), likeliest first in each context.
    """

    def __init__(
        self,
        contexts: npt.NDArray[np.int32],
        counts: npt.NDArray[np.uint8],
        tokens: npt.NDArray[np.int32],
        chances: npt.NDArray[np.uint8],
    ) -> None:
        if contexts.shape != (len(counts), LONGEST_CONTEXT) or not len(tokens) == len(chances) == int(counts.sum()):
            there = f"{len(tokens)} tokens and {len(chances)} chances for counts of {int(counts.sum())}"
            raise ValueError(f"{there}, contexts of shape {list(contexts.shape)}")
        is_possible = not len(tokens) or (chances.min() and tokens.min() >= 0 and contexts.min() >= NO_TOKEN)
        if not is_possible or int(contexts.max(initial=0)) + 1 >= 1 << _TOKEN_BITS:
            raise ValueError(f"token ids below 0 or of more than {_TOKEN_BITS} bits, or chances of 0")
        self._tokens = tokens
        self._log_chances = np.log(chances / np.float64(CHANCE_STEPS))
        self._stops = np.cumsum(counts, dtype=np.int64)
        numbers = np.zeros(len(contexts), np.int64)
        for column in contexts.T:
            numbers = (numbers << _TOKEN_BITS) + column + 1
        self._index: dict[int, int] = dict(zip(numbers.tolist(), range(len(contexts)), strict=True))

    def __len__(self) -> int:
        return len(self._index)

    def after(self, newest: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens that may follow, likeliest first, with their log-chances; none where the table knows nothing."""
        context = newest[-LONGEST_CONTEXT:]
        for first in range(len(context)):
            number = 0
            for token in context[first:]:
                number = (number << _TOKEN_BITS) + token + 1
            index = self._index.get(number)
            if index is not None:
                start, stop = int(self._stops[index - 1]) if index else 0, int(self._stops[index])
                tokens, log_chances = self._tokens[start:stop], self._log_chances[start:stop]
                return list(zip(tokens.tolist(), log_chances.tolist(), strict=True))
        return []


# Places that are looked at in one go: guesses that disagree at each token would otherwise double with each.
MOST_PLACES = 64


class TextGuesser:
    """Guesses for one conversation, in whose text runs of up to `longest` tokens are found at once.

    What it has learned of copies stays where it restarts.
    """

    def __init__(self, ngrams: NgramTable | None = None, longest: int = len(_PRIOR)) -> None:
        self.tokens: list[int] = []
        self._ngrams, self._longest = ngrams, longest
        self._after: dict[tuple[int, ...], int] = {}
        self._right = [share * _PRIOR_WEIGHT for share in _PRIOR]
        self._tries = [_PRIOR_WEIGHT] * len(_PRIOR)

    def restart(self, tokens: Sequence[int]) -> None:
        self.tokens = []
        self._after = {}
        for token in tokens:
            self._append(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens; each shows whether copying would have been right."""
        for token in tokens:
            position, size = self.matched()
            if size:
                self._tries[size - 1] += 1
                self._right[size - 1] += self.tokens[position] == token
            self._append(token)

    def _append(self, token: int) -> None:
        position = len(self.tokens)
        for size in range(1, min(self._longest, position) + 1):
            self._after[tuple(self.tokens[position - size :])] = position
        self.tokens.append(token)

    def matched(self, ahead: Sequence[int] = (), shortest: int = 1) -> tuple[int, int]:
        """Position after the newest occurrence of the longest run that ends the text and `ahead`, and its length.

        `ahead`: a draft after the text, which alone is searched. `shortest`: the shortest run that counts; without one,
        both numbers are 0.
        """
        newest = [*self.tokens[-self._longest :], *ahead][-self._longest :]
        for size in range(len(newest), shortest - 1, -1):
            position = self._after.get(tuple(newest[-size:]))
            if position is not None:
                return position, size
        return 0, 0

    def continuation(self, length: int, ahead: Sequence[int] = (), shortest: int = 1) -> list[int]:
        """Up to `length` tokens that followed the longest such run; empty if there is none."""
        position, size = self.matched(ahead, shortest)
        return self.tokens[position : position + length] if size else []

    def log_chance(self, size: int) -> float:
        """The log-chance that the token after a run of `size` tokens is what followed it before."""
        return math.log(self._right[size - 1] / self._tries[size - 1])

    def copied(self, ahead: Sequence[int] = (), shortest: int = SHORTEST) -> tuple[int, float] | None:
        """The token to copy after the text and `ahead`, and its log-chance; None: no such run occurred before."""
        position, size = self.matched(ahead, shortest)
        return (self.tokens[position], self.log_chance(size)) if size else None

    def guesses(self, ahead: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `ahead`, likeliest first, with their log-chances; each token once."""
        copied = self.copied(ahead)
        if self._ngrams is None:
            return [copied] if copied is not None else []
        usual = self._ngrams.after([*self.tokens[-LONGEST_CONTEXT:], *ahead])
        if copied is None:
            return usual
        token, log_chance = copied
        both = [(token, max([log_chance, *(chance for other, chance in usual if other == token)]))]
        both += [guess for guess in usual if guess[0] != token]
        return sorted(both, key=lambda guess: -guess[1])


SPARE = 8  # candidates beyond those that a draft may take, for text in which some are barred
UNLIKELY = -20.0  # log-score of what the form does not allow


@dataclass(eq=False, slots=True)
class GuessNode:
    token: int
    parent: GuessNode | None
    step: float  # its own log-score; -inf for what the drafter did not propose
    score: float  # sum of log-scores from the first root
    depth: int
    expanded: bool = False
    state_number: int = ROOT  # of an expanded node in the drafter
    children: dict[int, GuessNode] = field(default_factory=dict)
    number: int = -2  # in the draft of the call under way, where `call` is that call
    call: int = 0
    said: float = -math.inf  # the drafter's own log-score
    least: float = 0.0  # the least log-score among its candidates, for what is none of them
    spare: tuple[tuple[int, float], ...] = ()  # further tokens with their log-scores, best first
    looked: bool = False  # whether what the text suggests after it is among the children
    is_forced_on: bool = False  # the form leaves one token to follow it, its only child

    def add(self, token: int, step: float, said: float = -math.inf) -> GuessNode:
        """A child; one that is there gets the better of both scores."""
        child = self.children.get(token)
        if child is None:
            child = self.children[token] = GuessNode(token, self, step, self.score + step, self.depth + 1)
        else:
            child.step, child.score = max(step, child.step), max(self.score + step, child.score)
        child.said = max(said, child.said)
        return child

    @property
    def uncovered(self) -> float:
        return max(0.0, 1.0 - sum(math.exp(child.step) for child in self.children.values()))


class GuessTree:
    """`breadth`: candidates of each node that the drafter expands."""

    def __init__(self, drafter: Drafter, breadth: int, guesser: TextGuesser | None) -> None:
        self.drafter, self.guesser, self._breadth = drafter, guesser, breadth
        # Of the block under way: logits, log-scores and tokens, by position.
        self._ranked: dict[int, tuple[Rows, Rows, TokenIds]] = {}
        self.form: ConstrainedText | None = None
        self.sampling = Sampling()
        self.call = 0
        self.root = self._said = GuessNode(-1, None, 0.0, 0.0, 0)

    def forget(self, *, text_stays: bool = False) -> None:
        before, self.root = self.root, GuessNode(-1, None, 0.0, 0.0, 0)
        self._said = before if text_stays else self.root
        self._ranked.clear()

    def advance(self, tokens: Sequence[int], kept: Sequence[int]) -> bool:
        """Makes the node that these tokens lead to the root; whether there is such a node, which was expanded.

        `kept`: former numbers in the drafter of the nodes below it, now numbered 0, 1, ...
        """
        node: GuessNode | None = self.root
        for token in tokens:
            node = node.children.get(token) if node is not None else None
        if node is None or not node.expanded:  # the drafter says that it knows that node
            return False
        node.parent, node.state_number = None, ROOT
        self.root = self._said = node
        number = {former: now for now, former in enumerate(kept)}
        below = list(node.children.values())
        while below:
            child = below.pop()
            if child.expanded:
                child.state_number = number[child.state_number]
                below += child.children.values()
        return True

    def choices_along(self, tokens: Sequence[int]) -> list[Guess | None]:
        """The drafter's own first choice at each place that these tokens, about to be committed, go through.

        None where it was not asked, or had nothing to say.
        """
        choices: list[Guess | None] = []
        node: GuessNode | None = self.root if self.root.expanded else self._said
        for token in tokens:
            best = max(node.children.values(), key=lambda child: child.said, default=None) if node is not None else None
            choices.append((best.token, best.said) if best is not None and best.said > -math.inf else None)
            node = node.children.get(token) if node is not None else None
        return choices

    def place(self, draft: DraftTree, floor: float) -> list[GuessNode]:
        self.call += 1
        nodes = [self.root]
        self.root.call, self.root.number = self.call, ROOT
        for number, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = nodes[parent + 1]
            self.look(above, floor)
            node = above.children.get(token)
            if node is None:  # another drafter's guess
                node = above.children[token] = GuessNode(token, above, -math.inf, above.score, above.depth + 1)
            node.score = above.score + (node.step if node.step > -math.inf else above.least)
            node.call, node.number = self.call, number
            nodes.append(node)
        return nodes

    def look(self, node: GuessNode, floor: float) -> None:
        """Adds what the text suggests after a node, and after that, likeliest first, as far as it is likely enough."""
        if (self.guesser is None and self.form is None) or node.looked:
            return
        least = self.root.score + max(floor, math.log(LEAST_SURVIVAL))
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
                child = node.add(token, log_chance)
                heapq.heappush(below, (-child.score, next(order), child))

    def _suggestions(self, node: GuessNode) -> list[tuple[int, float]]:
        form, ahead = self.form, self.ahead(node)
        if form is not None and (forced := form.forced(ahead)):
            node.is_forced_on = True
            return [(forced[0], 0.0)]
        guesses = self.guesser.guesses(ahead) if self.guesser is not None else []
        if form is not None and guesses:
            permitted = form.permitted(ahead, [token for token, _ in guesses])
            guesses = [guess for guess in guesses if guess[0] in permitted]
        return guesses

    def ahead(self, node: GuessNode) -> list[int]:
        ahead: list[int] = []
        while node is not self.root and node.parent is not None:
            ahead.append(node.token)
            node = node.parent
        return ahead[::-1]

    def add_candidates(self, nodes: Sequence[GuessNode], logits: Rows) -> None:
        """Gives nodes their children, the best of what the drafter says after each."""
        drafter, form, sampling = self.drafter, self.form, self.sampling
        first = drafter.next_position - self.root.depth
        positions = [first + node.depth for node in nodes]
        paths = [self.ahead(node) for node in nodes] if sampling.reads_text or form is not None else []
        before = TextBefore(drafter.tokens, paths) if sampling.reads_text else None
        allowed = form.allowed_after(paths) if form is not None else None
        if drafter.most_depth is not None and before is None and allowed is None:
            best, tokens = self._of_block(logits, positions)
        else:
            most = self._breadth + SPARE
            best, tokens = draft_candidates(logits, positions, sampling, most, drafter.token_ids, before, allowed)
        if allowed is not None:
            best = np.where(np.take_along_axis(allowed, tokens, axis=1), best, np.float32(-np.inf))
        for node, row_tokens, row_scores in zip(nodes, tokens.tolist(), best.tolist(), strict=True):
            node.expanded = True
            node.least = min(0.0, max(UNLIKELY, row_scores[: self._breadth][-1]))
            pairs = list(zip(row_tokens, row_scores, strict=True))
            node.spare = tuple((token, min(0.0, score)) for token, score in pairs[self._breadth :] if score > -math.inf)
            for token, score in pairs[: self._breadth]:
                if score == -math.inf:
                    break  # not allowed
                node.add(token, min(0.0, score), said=min(0.0, score))

    def _of_block(self, logits: Rows, positions: Sequence[int]) -> tuple[Rows, TokenIds]:
        """`draft_candidates` of rows of a block, mostly the same for a level: looked at once, it is fast enough."""
        found: list[tuple[Rows, TokenIds]] = []
        for row, position in zip(logits, positions, strict=True):
            ranked = self._ranked.get(position)
            if ranked is None or not np.array_equal(ranked[0], row):
                most, drafter = self._breadth + SPARE, self.drafter
                if len(self._ranked) >= (drafter.most_depth or 0):  # of a text that goes on below its block
                    self._ranked.clear()
                best_of_row = draft_candidates(row[None], [position], self.sampling, most, drafter.token_ids)
                ranked = self._ranked[position] = row, *best_of_row
            found.append(ranked[1:])
        best, tokens = zip(*found, strict=True)
        return np.concatenate(best), np.concatenate(tokens)

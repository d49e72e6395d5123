"""An answer that must have a form: which tokens may follow it, and each path of a draft below it.

State: llguidance's matcher after the answer's tokens, what may follow these, and how long that took. Invariant: between
two calls it has read exactly these, so what may follow a path does not depend on what else was drafted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cache

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind
from moa_shared.tree import ROOT, DraftTree, path_to

Allowed = npt.NDArray[np.bool_]

# Of processor time that a step may take next to a forward, which takes 5 ms for a small model: JSON takes 0.05, a
# grammar whose words are single letters 1.
SLOW_MS = 2.0
FADE = 0.8  # of what a slow step took, with each one after it
MOST_SECONDS = 60.0  # of an answer: 30,000 slow steps
MOST_UNREAD = 16  # tokens that may be read next to a forward: 100 of an ambiguous grammar take a second


class ConstrainedText:
    """One answer under a constraint; `matcher`: at its beginning, its own from here on."""

    def __init__(
        self,
        kind: ConstraintKind,
        matcher: LLMatcher,
        vocabulary: LLTokenizer,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._kind = kind
        self._matcher = matcher
        self._size = vocabulary.vocab_size
        self._ends = frozenset(vocabulary.eos_tokens)
        self._clock = clock
        self.read = 0  # tokens of the answer
        self._next: npt.NDArray[np.int32] | None = None  # what may follow them; None: not known
        self._seconds = 0.0  # that it has taken in all; `_paid`: for which `take_ms` was asked
        self._paid = 0.0
        self._recent_ms = 0.0  # of the slowest recent step

    def copy(self) -> ConstrainedText:
        """The same answer, to be continued apart from this one; its time is its own."""
        other = copy(self)
        other._matcher = self._matcher.deep_copy()
        other._seconds = other._paid = other._recent_ms = 0.0
        return other

    @property
    def is_slow(self) -> bool:
        return self._recent_ms > SLOW_MS

    def needs_time(self, length: int) -> bool:
        """Whether what may follow the answer's first `length` tokens is not known, and slow to find."""
        known = self._next is not None and self.read == length
        return not known and (self.is_slow or length - self.read > MOST_UNREAD)

    def take_ms(self) -> float:
        """The processor time that it has taken since the last call."""
        seconds, self._paid = self._seconds - self._paid, self._seconds
        return 1e3 * seconds

    @contextmanager
    def _step(self) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - began
            self._seconds += seconds
            self._recent_ms = max(1e3 * seconds, FADE * self._recent_ms)
        if self._seconds > MOST_SECONDS:
            raise refusal(self._kind, f"one answer takes more than {MOST_SECONDS:g} s")

    def advance(self, tokens: Sequence[int]) -> None:
        if not tokens:
            return
        with self._step():
            read = self._matcher.try_consume_tokens(list(tokens))
        self.read += read
        self._next = None
        if self._matcher.is_error():
            raise refusal(self._kind, self._matcher.get_error())
        if read < len(tokens):
            raise ConfigError(
                f"Token {self.read + 1} of the answer does not have the form that it must have.",
                hint="Ask again: the answer was continued without its constraint.",
            )

    def forced(self, path: Sequence[int] = ()) -> list[int]:
        """The tokens that follow the answer and a path in any case, as the tokenizer writes them; none: a choice."""
        with self._below(path) as is_of_form:
            return self._matcher.compute_ff_tokens() if is_of_form else []

    def permitted(self, path: Sequence[int], tokens: Sequence[int]) -> list[int]:
        """Those of some tokens that may follow the answer and a path below it; it costs much less than a mask.

        All, where the path is not of the form; none after an end.
        """
        if self._ends.intersection(path):
            return []
        with self._below(path) as is_of_form:
            matcher = self._matcher  # of an end it does not say whether it may follow
            return [
                token
                for token in tokens
                if not is_of_form
                or (matcher.is_accepting() if token in self._ends else matcher.validate_tokens([token]))
            ]

    def allowed_after(self, paths: Sequence[Sequence[int]]) -> Allowed:
        """Which tokens may follow the answer and each path below it, [paths, vocabulary].

        All, where the path is not of the form; none after an end.
        """
        masks = allocate_token_bitmask(len(paths), self._size)
        masks[:] = 0
        for row, path in enumerate(paths):
            if self._ends.intersection(path):
                continue
            with self._below(path) as is_of_form:
                if is_of_form:
                    fill_next_token_bitmask(self._matcher, masks, row)
                else:
                    masks[row] = -1
        return self._unpacked(masks)

    @contextmanager
    def _below(self, path: Sequence[int]) -> Iterator[bool]:
        """Has the matcher read a path for a while; whether it is of the form, and does not end the text."""
        read = 0 if self._ends.intersection(path) else self._matcher.try_consume_tokens(list(path))
        try:
            yield read == len(path)
        finally:
            self._matcher.rollback(read)

    def allowed(self, tree: DraftTree) -> Allowed:
        """Which tokens may follow the answer, and each node of a draft below it: [1 + nodes, vocabulary].

        All may follow a node that cannot itself be chosen.
        """
        with self._step():
            return self._unpacked(self._masks(tree))

    def _masks(self, tree: DraftTree) -> npt.NDArray[np.int32]:
        masks = allocate_token_bitmask(1 + len(tree), self._size)
        if self._next is None:
            self._fill(masks, 0)
            self._next = masks[0].copy()
        masks[0] = self._next
        goes_on = [False] * len(tree)  # whether something may follow the node
        read: list[int] = []  # nodes, after the answer
        try:
            for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
                is_allowed = bool(int(masks[parent + 1, token >> 5]) >> (token & 31) & 1)
                if (parent != ROOT and not goes_on[parent]) or not is_allowed or token in self._ends:
                    continue  # nothing follows; and the matcher cannot take back an end
                self._go_to(parent, tree, read)
                self._matcher.consume_token(token)
                read.append(node)
                goes_on[node] = True
                self._fill(masks, node + 1)
        finally:
            self._matcher.rollback(len(read))
        return masks

    def _unpacked(self, masks: npt.NDArray[np.int32]) -> Allowed:
        bits = np.unpackbits(masks.view(np.uint8), axis=1, count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def _go_to(self, node: int, tree: DraftTree, read: list[int]) -> None:
        path = path_to(tree.parents, node)
        shared = 0
        while shared < min(len(path), len(read)) and path[shared] == read[shared]:
            shared += 1
        self._matcher.rollback(len(read) - shared)
        self._matcher.consume_tokens([tree.tokens[each] for each in path[shared:]])
        read[:] = path

    def _fill(self, masks: npt.NDArray[np.int32], row: int) -> None:
        fill_next_token_bitmask(self._matcher, masks, row)
        if self._matcher.is_error():
            raise refusal(self._kind, self._matcher.get_error())
        if not masks[row].any():
            raise refusal(self._kind, "no token can follow")


class ByteTokens:
    """A tokenizer of single bytes, and longer tokens that no text is encoded with; its last one ends a text."""

    bos_token_id = None

    def __init__(self, longer: Sequence[bytes] = ()) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), *longer, b"<end>"]
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


@cache
def _vocabulary() -> LLTokenizer:
    tokens = ByteTokens([b""] * 300_000)  # more than the largest vocabularies have; they take 0.1 s once
    return LLTokenizer(TokenizerWrapper(tokens), eos_token=tokens.eos_token_id)


def try_constraint(kind: int, text: str) -> None:
    """Compiles a constraint, and finds what an answer may begin with; ConfigError: it cannot be enforced."""
    constraint, vocabulary = Constraint(ConstraintKind(kind), text), _vocabulary()
    begun = ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)
    begun.allowed(DraftTree((), ()))

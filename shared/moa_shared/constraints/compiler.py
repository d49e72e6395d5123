"""Compiles constraints for one model: tried in a child process first, then kept for the answers that follow.

State: the model's vocabulary, once something is constrained, the newest compiled constraints, and why others could not
be compiled. Invariant: nothing is compiled here that a child with limits, of this machine or of the server, has not
compiled before.
"""

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property

from llguidance import LLTokenizer

from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import Constraint
from moa_shared.sandbox.child import ChildError, constraint_child
from moa_shared.tree import DraftTree

KEPT = 64  # compiled constraints; a large one takes some megabytes
REFUSALS_KEPT = 1024  # of constraints that failed, by their hash: a kilobyte each
REFUSAL_SECONDS = 600.0  # that one is kept: the machine may have been too busy for it


class ConstraintCompiler:
    """Compiles constraints, on several threads.

    `size`: rows of the model's head. `end_of_text`: tokens that end an answer. `tries`: false where a server has tried
    what is compiled.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        size: int,
        end_of_text: Iterable[int],
        *,
        tries: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tries = tries
        self._clock = clock
        self._tokenizer = tokenizer
        self._size = size
        self._end_of_text = frozenset(end_of_text)
        self._compiling = threading.Lock()  # held for seconds; `_lock`: for what is kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, ConstrainedText] = OrderedDict()  # by hash, the oldest first
        self._refusals: OrderedDict[bytes, tuple[float, ConfigError]] = OrderedDict()  # since when, the oldest first

    def prepare(self) -> None:
        """Makes the vocabulary before there is anybody who would wait for it; one that fails is refused later."""
        with suppress(ModelSourceError):
            _ = self._vocabulary

    def begin(self, constraint: Constraint) -> ConstrainedText:
        """An answer before its first token; the first of a model takes a second more. ConfigError: it is refused."""
        with self._compiling:
            if (known := self.known(constraint)) is not None:
                return known
            key = _key(constraint)
            try:
                text = self._compile(constraint)
            except ConfigError as error:
                with self._lock:
                    self._refusals[key] = self._clock(), ConfigError(error.message, hint=error.hint)
                    if len(self._refusals) > REFUSALS_KEPT:
                        self._refusals.popitem(last=False)
                raise
            with self._lock:
                self._kept[key] = text
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
                return text.copy()

    def known(self, constraint: Constraint) -> ConstrainedText | None:
        """As `begin`, without a wait, where this constraint was compiled before; None: it is not kept."""
        key, now = _key(constraint), self._clock()
        with self._lock:
            while self._refusals and next(iter(self._refusals.values()))[0] < now - REFUSAL_SECONDS:
                self._refusals.popitem(last=False)
            if key in self._refusals:
                refused = self._refusals[key][1]
                raise ConfigError(refused.message, hint=refused.hint)
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key].copy()

    def _compile(self, constraint: Constraint) -> ConstrainedText:
        if self._tries:
            try:
                constraint_child().try_constraint(constraint)
            except ChildError as error:
                raise refusal(constraint.kind, str(error)) from None
        vocabulary = self._vocabulary
        text = ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)
        text.allowed(DraftTree((), ()))
        return text

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """0.3 s for 49,000 tokens, in which all threads of Python stand still; rows without a token are not allowed."""
        tokens, rows = self._tokenizer.to_json(), max(self._size, self._tokenizer.size)
        try:
            return LLTokenizer(tokens, n_vocab=rows, eos_token=sorted(self._end_of_text))
        except ValueError as error:
            raise ModelSourceError(f"Answers of this model cannot be constrained: {error}.") from None


def _key(constraint: Constraint) -> bytes:
    return hashlib.sha256(f"{constraint.kind.value} {constraint.text}".encode()).digest()

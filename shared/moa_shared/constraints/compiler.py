"""Compiles constraints for one model: tried in a child process first, then kept for the answers that follow.

State: the model's vocabulary, once something is constrained, the newest compiled constraints, and why others could not
be compiled. Invariant: nothing is compiled here that a child with limits, of this machine or of the server, has not
compiled before.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer

from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.constraints.vocabulary import vocabulary_of
from moa_shared.errors import ConfigError
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.sampling.constraint import Constraint
from moa_shared.sandbox.child import ChildError, constraint_child

KEPT = 64  # compiled constraints; a large one takes some megabytes
REFUSALS_KEPT = 1024  # of constraints that failed, by their hash: a kilobyte each
REFUSAL_SECONDS = 600.0  # that one is kept: the machine may have been too busy for it


class ConstraintCompiler:
    """Compiles constraints; may be called on several threads.

    Args:
        size: rows of the model's head.
        end_of_text: tokens that end an answer.
        tries: False where a server has tried what is compiled.
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
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled = lru_cache(KEPT)(self._compile)
        self._refusals: OrderedDict[bytes, tuple[float, ConfigError]] = OrderedDict()  # since when, the oldest first

    def begin(self, constraint: Constraint) -> ConstrainedText:
        """An answer under a constraint, before its first token; the first one of a model takes a second more.

        Raises:
            ConfigError: the constraint cannot be enforced, or takes too long to compile.
        """
        with self._lock:
            matcher = self._compiled_or_refused(constraint)
            vocabulary = self._vocabulary_of_model()
            return ConstrainedText(constraint.kind, matcher.deep_copy(), vocabulary)

    def _compiled_or_refused(self, constraint: Constraint) -> LLMatcher:
        key = hashlib.sha256(f"{constraint.kind.value} {constraint.text}".encode()).digest()
        now = self._clock()
        while self._refusals and next(iter(self._refusals.values()))[0] < now - REFUSAL_SECONDS:
            self._refusals.popitem(last=False)
        if key in self._refusals:
            refused = self._refusals[key][1]
            raise ConfigError(refused.message, hint=refused.hint)
        try:
            return self._compiled(constraint)
        except ConfigError as error:
            self._refusals[key] = now, ConfigError(error.message, hint=error.hint)
            if len(self._refusals) > REFUSALS_KEPT:
                self._refusals.popitem(last=False)
            raise

    def _compile(self, constraint: Constraint) -> LLMatcher:
        if self._tries:
            try:
                constraint_child().try_constraint(constraint)
            except ChildError as error:
                raise refusal(constraint.kind, str(error)) from None
        return compile_grammar(constraint, self._vocabulary_of_model())

    def _vocabulary_of_model(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(self._tokenizer, self._size, self._end_of_text)
        return self._vocabulary

"""Compiles constraints for one model: tried in a child process first, then kept for the answers that follow.

State: the model's vocabulary, once something is constrained, and the newest compiled constraints. Invariant: nothing
is compiled here that a child with limits has not compiled before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import lru_cache

from llguidance import LLMatcher, LLTokenizer

from moa_shared.constraints.constrained_text import ConstrainedText
from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.constraints.vocabulary import vocabulary_of
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.sampling.constraint import Constraint
from moa_shared.sandbox.child import ChildError, constraint_child

KEPT = 64  # compiled constraints; a large one takes some megabytes


class ConstraintCompiler:
    """Compiles constraints; may be called on several threads.

    Args:
        size: rows of the model's head.
        end_of_text: tokens that end an answer.
    """

    def __init__(self, tokenizer: Tokenizer, size: int, end_of_text: Iterable[int]) -> None:
        self._tokenizer = tokenizer
        self._size = size
        self._end_of_text = frozenset(end_of_text)
        self._lock = threading.Lock()
        self._vocabulary: LLTokenizer | None = None
        self._compiled = lru_cache(KEPT)(self._compile)

    def begin(self, constraint: Constraint) -> ConstrainedText:
        """An answer under a constraint, before its first token; the first one of a model takes a second more.

        Raises:
            ConfigError: the constraint cannot be enforced, or takes too long to compile.
        """
        with self._lock:
            matcher = self._compiled(constraint)
            vocabulary = self._vocabulary_of_model()
            return ConstrainedText(constraint.kind, matcher.deep_copy(), vocabulary)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        try:
            constraint_child().try_constraint(constraint)
        except ChildError as error:
            raise refusal(constraint.kind, str(error)) from None
        return compile_grammar(constraint, self._vocabulary_of_model())

    def _vocabulary_of_model(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = vocabulary_of(self._tokenizer, self._size, self._end_of_text)
        return self._vocabulary

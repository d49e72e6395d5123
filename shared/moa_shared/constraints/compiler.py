"""Compiles constraints for one model: tried in a child process first, then kept for the answers that follow.

State: the model's vocabulary, once something is constrained, and the newest constraints: compiled, or why they cannot
be. Invariant: nothing is compiled here that a child with limits, of this machine or of the server, has not compiled
before. Importing this needs no library that compiles forms.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from moa_shared.constraints.grammar import compile_grammar, refusal
from moa_shared.errors import ConfigError, ModelSourceError
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import Constraint
from moa_shared.sandbox.child import ChildError, text_child
from moa_shared.tree import DraftTree

if TYPE_CHECKING:
    from llguidance import LLTokenizer

    from moa_shared.constraints.constrained_text import ConstrainedText

TRIAL = "moa_shared.constraints.constrained_text:try_constraint"
TRIAL_SECONDS = 1  # in a child of its own; compiling for a model's vocabulary takes up to four times as long
KEPT = 64  # a large one takes some megabytes
REFUSAL_SECONDS = 600.0  # that one is kept: the machine may have been too busy for it


def constraint_compiler(
    tokenizer: Tokenizer, size: int, end_of_text: Iterable[int], *, tries: bool = True
) -> ConstraintCompiler | None:
    """As `ConstraintCompiler`; None where the library for that is not installed."""
    return ConstraintCompiler(tokenizer, size, end_of_text, tries=tries) if find_spec("llguidance") else None


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
        # By hash, the oldest first; each with the time.
        self._kept: OrderedDict[bytes, tuple[ConstrainedText | ConfigError, float]] = OrderedDict()

    def prepare(self) -> None:
        """Makes the vocabulary before there is anybody who would wait for it; one that fails is refused later."""
        with suppress(ModelSourceError):
            _ = self._vocabulary

    def begin(self, constraint: Constraint) -> ConstrainedText:
        """An answer before its first token; the first of a model takes a second more. ConfigError: it is refused."""
        with self._compiling:
            if (known := self.known(constraint)) is not None:
                return known
            try:
                made: ConstrainedText | ConfigError = self._compile(constraint)
            except ConfigError as error:
                made = error
            with self._lock:
                self._kept[_key(constraint)] = made, self._clock()
                if len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
                return _begun(made)

    def known(self, constraint: Constraint) -> ConstrainedText | None:
        """As `begin`, without a wait, where this constraint was compiled before; None: it is not kept."""
        with self._lock:
            made, since = self._kept.get(_key(constraint), (None, 0.0))
            if made is None or (isinstance(made, ConfigError) and since < self._clock() - REFUSAL_SECONDS):
                return None
            self._kept.move_to_end(_key(constraint))
            return _begun(made)

    def _compile(self, constraint: Constraint) -> ConstrainedText:
        from moa_shared.constraints.constrained_text import ConstrainedText

        if self._tries:
            try:
                text_child(TRIAL_SECONDS).ask(TRIAL, kind=constraint.kind.value, text=constraint.text)
            except ChildError as error:
                raise refusal(constraint.kind, str(error)) from None
        vocabulary = self._vocabulary
        text = ConstrainedText(constraint.kind, compile_grammar(constraint, vocabulary), vocabulary)
        text.allowed(DraftTree((), ()))
        return text

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        """0.3 s for 49,000 tokens, in which all threads of Python stand still; rows without a token are not allowed."""
        from llguidance import LLTokenizer

        tokens, rows = self._tokenizer.text, max(self._size, self._tokenizer.size)
        try:
            return LLTokenizer(tokens, n_vocab=rows, eos_token=sorted(self._end_of_text))
        except ValueError as error:
            raise ModelSourceError(f"Answers of this model cannot be constrained: {error}.") from None


def _begun(made: ConstrainedText | ConfigError) -> ConstrainedText:
    if isinstance(made, ConfigError):
        raise ConfigError(made.message, hint=made.hint)  # without the traceback of the first
    return made.copy()


def _key(constraint: Constraint) -> bytes:
    return hashlib.sha256(f"{constraint.kind.value} {constraint.text}".encode()).digest()


class DraftForm:
    """Follows one answer. `form`: of the answer; how much of it that has read does not matter."""

    def __init__(self, form: ConstrainedText) -> None:
        self._form: ConstrainedText | None = form.copy()

    def after(self, answer: Sequence[int]) -> ConstrainedText | None:
        """The form after the answer's committed tokens, each time more of them; None: they are not of it."""
        form = self._form
        if form is not None:
            try:
                form.advance(answer[form.read :])
            except ConfigError:
                self._form = None
        return self._form

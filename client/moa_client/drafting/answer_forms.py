"""The forms of answers on a device, for its drafter: drafts that a form forbids cost the server time for nothing.

State: of the device, one thread that compiles; of a conversation, the form of its running answer. Invariant: nobody
waits for a form. Until it is compiled, and where the library for it is missing, drafts are made without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from moa_shared.constraints.draft_form import DraftForm
from moa_shared.sampling.constraint import Constraint
from moa_shared.sampling.settings import Sampling

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText


class DeviceForms:
    """Compiles the forms to which a server holds answers; it has tried them.

    Args:
        new_compiler: called on a thread, for the first form; it gives None where the library is missing.
    """

    def __init__(self, new_compiler: Callable[[], ConstraintCompiler | None]) -> None:
        self._new_compiler = new_compiler
        self._compiler: ConstraintCompiler | None = None
        self._thread: ThreadPoolExecutor | None = None  # from the first form on

    def begin(self, constraint: Constraint) -> Future[ConstrainedText | None]:
        """An answer under a constraint, before its first token; None: it cannot be had."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "forms")
        return self._thread.submit(self._begin, constraint)

    def _begin(self, constraint: Constraint) -> ConstrainedText | None:
        if self._compiler is None:
            self._compiler = self._new_compiler()
        return self._compiler.begin(constraint) if self._compiler is not None else None


class ConversationForms:
    """The form of one conversation's running answer.

    Args:
        forms: of the device.
    """

    def __init__(self, forms: DeviceForms) -> None:
        self._forms = forms
        self._key: tuple[Constraint, int] | None = None  # of the running answer: its constraint and its place
        self._begun: Future[ConstrainedText | None] | None = None
        self._form: DraftForm | None = None
        self._answer: list[int] = []  # that the form has read

    def after(self, tokens: Sequence[int], sampling: Sampling) -> ConstrainedText | None:
        """The form after the conversation's tokens; None: there is none, or not yet, or they are not of it.

        Args:
            sampling: of the running answer.
        """
        answer = list(tokens[sampling.answer_start :])
        if sampling.constraint is None or not answer:  # before its first token no server has tried the form
            self._key = self._begun = self._form = None
            return None
        key = sampling.constraint, sampling.answer_start
        if key != self._key or answer[: len(self._answer)] != self._answer:
            self._key, self._form, self._answer = key, None, []
            self._begun = self._forms.begin(sampling.constraint)
        if self._form is None:
            self._form = self._compiled()
        if self._form is None:
            return None
        self._answer = answer
        return self._form.after(answer)

    def _compiled(self) -> DraftForm | None:
        begun = self._begun
        if begun is None or not begun.done() or begun.exception() is not None:
            return None
        form = begun.result()
        return DraftForm(form) if form is not None else None

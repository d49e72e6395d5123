"""The form of an answer as a drafter follows it: apart from the one that decides, which no draft may harm.

State: a copy of the answer under its constraint, which reads what is committed. Invariant: what it allows is what the
target may choose there; of a text that is not of the form it knows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa_shared.errors import ConfigError

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText


class DraftForm:
    """Follows one answer.

    Args:
        form: of the answer; how much of it that has read does not matter.
    """

    def __init__(self, form: ConstrainedText) -> None:
        self._form: ConstrainedText | None = form.copy()

    def after(self, answer: Sequence[int]) -> ConstrainedText | None:
        """The form after the answer's committed tokens; None: they are not of it.

        Args:
            answer: all of them, each time more.
        """
        form = self._form
        if form is not None:
            try:
                form.advance(answer[form.read :])
            except ConfigError:
                self._form = None
        return self._form

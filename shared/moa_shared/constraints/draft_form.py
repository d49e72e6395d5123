"""The form of an answer for whoever drafts it: drafts that leave it would be refused. Imports no library of forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa_shared.errors import ConfigError

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import ConstrainedText


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

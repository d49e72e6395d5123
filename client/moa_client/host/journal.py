"""What keeps a conversation as it happens; `history/recorder.py` does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import AnswerEvent


class ConversationJournal(Protocol):
    """Keeps a conversation as it happens. All calls may raise MoaError: nothing of what was to be kept is kept then."""

    def begin(self, question: str, options: AnswerOptions, instead_of: int = 0) -> None:
        """A question is asked; the events of its answer follow.

        Args:
            instead_of: in the place of the answer of this number, and of those after it; 0: after all.
        """

    def continue_answer(self, options: AnswerOptions) -> None:
        """The newest answer goes on, as if it had been asked with these options."""

    def on_event(self, event: AnswerEvent, text: AnswerText, figures: Mapping[str, float] | None = None) -> None:
        """Keeps what an event brings: `text` is that of its answer after it."""

    def fail(self, piece: str = "") -> None:
        """The current answer is over with what is committed of it."""

    def take_back(self) -> None:
        """The current question got no answer."""

    def rewind(self, answers: int) -> None:
        """Only the first `answers` answers remain."""

    def set_title(self, title: str) -> None:
        """The conversation has another title."""

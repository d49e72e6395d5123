"""An answer as a conversation tells it: events in, updates out, and the text that they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update
from moa_client.conversation.events import Ended, Event, LinkChanged, Notice
from moa_client.conversation.figures import Figures


def letters(tokens: Sequence[int]) -> str:
    """Token 0 is the letter a."""
    return "".join(chr(ord("a") + token) for token in tokens)


class Told:
    """One answer.

    Args:
        decode: text of some tokens.
        question: what it answers; `number`: in its conversation.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str] = letters, question: str = "", number: int = 1, *events: Event
    ) -> None:
        self.text = AnswerText(question, number)
        self._decoder = AnswerDecoder(self.text, decode)
        for event in events:
            self.tell(event)

    def tell(self, event: Event) -> Update:
        """The update of an event of this answer, which its text has applied."""
        if isinstance(event, LinkChanged | Notice):
            return Update(event)
        figures = Figures(finish=event.finish) if isinstance(event, Ended) else None
        return Update(self._decoder.take_event(event), self.text.number, figures=figures)

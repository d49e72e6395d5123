"""The text of an answer as a surface collects it from updates: committed text, then provisional text. Pure.

Invariant: committed text only grows.
"""

from __future__ import annotations

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.events import Ended, HeldBack, Refused, Settled
from moa_client.conversation.updates import Failed, Update


class AnswerText:
    """One answer.

    Args:
        question: what it answers.
        number: in its conversation, from 1.
    """

    def __init__(self, question: str = "", number: int = 0) -> None:
        self.question = question
        self.number = number
        self.finish = Finish.UNFINISHED
        self.committed = ""
        self.provisional = ""
        self.ended = ""  # all text when it ended without the server
        self.waiting = 0  # provisional tokens
        self.is_running = True
        self.is_unsettled = False  # it ended without the server, which has not decided it yet

    def apply(self, update: Update) -> None:
        """Applies an update about this answer."""
        event = update.event
        self.committed = update.text if isinstance(event, Settled) else self.committed + update.piece
        if not isinstance(event, HeldBack | Refused):  # which leave the text as it is
            self.provisional, self.waiting = update.provisional, update.waiting
        if isinstance(event, Ended | Settled):
            self.finish = event.finish
            self.is_running = False
            self.is_unsettled = isinstance(event, Ended) and event.provisional
        elif isinstance(event, Failed):
            self.is_running = False
        elif isinstance(event, Refused):
            self.is_unsettled = False
        if isinstance(event, Ended) and event.provisional:
            self.ended = self.committed + self.provisional

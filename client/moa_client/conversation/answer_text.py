"""The text of an answer as a surface collects it from updates: committed text, then provisional text. Pure.

Invariant: committed text only grows.
"""

from __future__ import annotations

from moa_shared.protocol.finish_rule import Finish

from moa_client.conversation.answer_options import OPEN, AnswerOptions
from moa_client.conversation.events import Ended, HeldBack, Refused, Settled
from moa_client.conversation.updates import Continued, Failed, Update


class AnswerText:
    """One answer.

    Args:
        question: what it answers.
        number: in its conversation, from 1.
        options: how it is chosen.
    """

    def __init__(self, question: str = "", number: int = 0, options: AnswerOptions = OPEN) -> None:
        self.question = question
        self.number = number
        self.options = options
        self.finish = Finish.UNFINISHED
        self.committed = ""
        self.provisional = ""
        self.ended = ""  # all text when it ended without the server
        self.waiting = 0  # provisional tokens
        self.seen = 0  # characters of committed text that its reader had seen before it was continued
        self.is_running = True
        self.is_unsettled = False  # it ended without the server, which has not decided it yet

    @property
    def unseen(self) -> str:
        """The committed text, without what its reader had seen before it was continued."""
        return self.committed[self.seen :]

    @property
    def may_continue(self) -> bool:
        """Whether its end was none of its own: a limit, the user, or an error."""
        own = (Finish.END_OF_TEXT, Finish.STOP, Finish.CONTEXT, Finish.LOOP)
        return bool(self.committed) and not (self.is_running or self.is_unsettled or self.finish in own)

    def apply(self, update: Update) -> None:
        """Applies an update about this answer."""
        event = update.event
        if isinstance(event, Continued):
            self.options, self.finish, self.is_running = event.options, Finish.UNFINISHED, True
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

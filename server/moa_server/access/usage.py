"""What one session has used, for the line that the log keeps of it. Pure; no text is in it."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from moa_shared.protocol.finish_rule import Finish

from moa_server.access.caller import Caller


@dataclass(slots=True)
class Usage:
    """Counts of a session.

    Args:
        began: when, in seconds of the clock of `facts`.
        questions: that were asked.
        tokens_in: that the client sent; a text that it brings from another server counts as a whole.
        tokens_out: of the answers.
        finish: of the newest answer; UNFINISHED: it has not ended, or there is none.
    """

    began: float
    questions: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    finish: Finish = Finish.UNFINISHED
    _known: int = 0  # tokens of the conversation that are counted
    _newest: int = 0  # question

    def on_ask(self, number: int, length: int) -> None:
        """A question, with which the conversation has so many tokens; or an answer that is continued.

        Args:
            number: the client's of the question.
        """
        self.questions += number != self._newest
        self._newest = number
        self.tokens_in += max(0, length - self._known)
        self._known = length
        self.finish = Finish.UNFINISHED

    def on_written(self, tokens: int, finish: Finish) -> None:
        """So many tokens of an answer."""
        self.tokens_out += tokens
        self._known += tokens
        self.finish = finish

    def facts(self, caller: Caller, now: float) -> dict[str, object]:
        """For the log."""
        return {
            "key": caller.key or (caller.owner if caller.is_proven else ""),
            "peer": unquote(caller.peer),
            "questions": self.questions,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "finish": self.finish.name.lower(),
            "seconds": round(now - self.began, 1),
        }

"""Text for the events of an answer, which an engine makes of tokens. Pure.

State: the text that the events add up to, and what a token's text may depend on: the tokens before it.
Invariants: committed and provisional text together are those of all tokens, each decoded after the one before it,
however events divide them; a token is decoded when it is shown and again when it is confirmed, never more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.text_stream import TextStream

from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.text_runs import runs_of

ENDED_BY_TEXT = (Finish.END_OF_TEXT, Finish.STOP)  # in the others more would follow


class AnswerDecoder:
    """Decodes the events of one answer. `text`: the answer; what its options name ends its text."""

    def __init__(self, text: AnswerText, decode: Callable[[Sequence[int]], str]) -> None:
        self.text = text
        self._stream = TextStream(decode, text.options.stop)  # of the committed tokens
        self._ahead: TextStream | None = None  # of these and the provisional ones

    def restore(self, committed: Sequence[int], waiting: Sequence[int] = ()) -> None:
        """Continues an answer that had ended, with the committed text that it has.

        `waiting`: its provisional tokens, which a server is still to decide.
        """
        self._stream.restore(committed, self.text.committed)
        self.text.tokens = len(committed)
        self.text.waiting, self.text.provisional = tuple(waiting), ""
        if waiting:
            ahead = self._stream.fork()
            self.text.provisional = _push(ahead, waiting) + ahead.finish(is_cut=True)

    def take(self, event: events.AnswerEvent | events.Earlier) -> events.AnswerEvent:
        """Applies an event of this answer to its text; the event with what it adds to that."""
        taken = self._decoded(event.event if isinstance(event, events.Earlier) else event)
        self.text.apply(taken)
        return taken

    def break_off(self, event: events.Ended | events.Failed) -> events.Ended | events.Failed:
        """The answer ends with what is committed of it, and so does its text; the event with the rest of that."""
        broken = replace(event, text=self._stream.finish(is_cut=True))
        self.text.apply(broken)
        return broken

    def _decoded(self, event: events.AnswerEvent) -> events.AnswerEvent:
        match event:
            case events.Committed(tokens, confirmed):
                if confirmed < len(tokens):
                    self._ahead = None
                pieces = _pieces(self._stream, tokens)
                lengths = tuple(map(len, pieces))
                runs = runs_of(lengths, event.writers, event.chances)
                return replace(event, text="".join(pieces), lengths=lengths if event.chances else (), runs=runs)
            case events.Provisional(tokens):
                self._ahead = self._ahead or self._stream.fork()
                return replace(event, added=_push(self._ahead, tokens))
            case events.Corrected():
                self._ahead = None
            case events.Ended(finish, provisional=True):
                ahead, self._ahead = self._ahead or self._stream.fork(), None
                return replace(event, added=ahead.finish(is_cut=finish not in ENDED_BY_TEXT))
            case events.Ended(finish):
                return replace(event, text=self._stream.finish(is_cut=finish not in ENDED_BY_TEXT))
            case events.Settled(tokens, finish=finish):
                rest = _push(self._stream, tokens[self.text.decided :])
                return replace(event, text=rest + self._stream.finish(is_cut=finish not in ENDED_BY_TEXT))
        return event


def _push(stream: TextStream, tokens: Sequence[int]) -> str:
    return "".join(_pieces(stream, tokens))


def _pieces(stream: TextStream, tokens: Sequence[int]) -> list[str]:
    """Adds tokens one by one, so that the text does not depend on how they came; the text that comes with each."""
    return [stream.push((token,)) for token in tokens]

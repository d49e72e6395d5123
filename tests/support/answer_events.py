"""Events of answers: of a plain step, and a strategy for those of one answer, whose tokens are bytes, so that every event
may cut a character in pieces; and a tokenizer that anybody can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Update
from moa_client.conversation.events import (
    AnswerEvent,
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Event,
    LinkChanged,
    Notice,
    Provenance,
    Provisional,
    Settled,
)
from moa_client.conversation.figures import Figures
from moa_shared.protocol.messages import Finish


def decode_bytes(tokens: Sequence[int]) -> str:
    """The text of tokens that are bytes."""
    return bytes(tokens).decode("utf-8", "replace")


@st.composite
def events_of(draw: st.DrawFn, text: str) -> list[AnswerEvent | Earlier]:
    """Events after which the answer is `text`; it ends without the server, and is settled."""
    whole = list(text.encode())
    events: list[AnswerEvent | Earlier] = []
    waiting: list[int] = []
    end = draw(st.integers(0, len(whole)))  # where the link is lost for good
    told = draw(st.integers(end, len(whole)))  # what is decided after that, until all is
    done = ended = 0

    def correct() -> list[Committed | Corrected]:
        dropped, waiting[:] = len(waiting), []
        return [Corrected(dropped)] if dropped else []

    def commit(most: int) -> list[Committed | Corrected]:
        nonlocal done
        new = tuple(whole[done : min(most, done + draw(st.integers(1, 4)))])
        confirmed, writer = 0, draw(st.sampled_from([Provenance.DRAFT, Provenance.SERVER, Provenance.TARGET]))
        while confirmed < min(len(new), len(waiting)) and new[confirmed] == waiting[confirmed]:
            confirmed += 1
        first = Committed(new[:confirmed], confirmed, writers=(writer,) * confirmed)
        happened: list[Committed | Corrected] = [first] if confirmed else []
        del waiting[:confirmed]
        if confirmed < len(new):
            happened += [*correct(), Committed(new[confirmed:], writers=(writer,) * (len(new) - confirmed))]
        done += len(new)
        return happened

    while done < end:
        kind = draw(st.sampled_from(["commit", "write", "correct"]))
        if kind == "write":
            guess = draw(st.lists(st.sampled_from(whole), min_size=1, max_size=5))
            at = done + len(waiting)
            written = (*(whole[at : at + 3] if draw(st.booleans()) else []), *guess)
            waiting += written
            events.append(Provisional(written, likely=draw(st.booleans())))
        elif kind == "correct":
            events += correct()
        else:
            events += commit(len(whole))
    ended = done
    events.append(Ended(Finish.MAX_TOKENS, provisional=True))
    while done < told:
        events += [Earlier(each) for each in commit(told)]
    return [*events, Settled(tuple(whole[ended:]), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS)]


def letters(tokens: Sequence[int]) -> str:
    """Token 0 is the letter a."""
    return "".join(chr(ord("a") + token) for token in tokens)


class Told:
    """One answer. `decode`: text of some tokens. `question`: what it answers; `number`: in its conversation."""

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


class PlainTokenizer:
    """Tokens are characters; the template writes who speaks before each message."""

    chat_template = "plain"

    def with_tools(self) -> PlainTokenizer:
        return self

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def as_letters(self, text: str, but: Sequence[str] = ()) -> str:
        return text

    def with_bos(self, ids: list[int]) -> list[int]:
        return ids

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, arguments: Mapping[str, Any] | None
    ) -> str:
        return "".join(f"[{message['role']}]{message['content']}" for message in messages)

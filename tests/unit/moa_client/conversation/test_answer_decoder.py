"""The text of an answer, whatever was provisional in between."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_decoder import AnswerDecoder
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerEvent,
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Provisional,
    Settled,
)
from moa_client.conversation.text_runs import Provenance, TextRun
from moa_client.surface.messages import fields_of, update_of
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances
from moa_shared.text.text_stream import TextStream

from tests.support.answer_events import decode_bytes, events_of
from tests.support.told import Told

TOKEN = st.integers(0, 25)


CANCELLED = Ended(Finish.CANCELLED)


def begun(decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> AnswerDecoder:
    return AnswerDecoder(AnswerText(options=AnswerOptions(stop=stop)), decode)


def take(decoder: AnswerDecoder, event: AnswerEvent | Earlier) -> str:
    """What an event adds to the committed text."""
    before = len(decoder.text.committed)
    decoder.take(event)
    return decoder.text.committed[before:]


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_chances_come_with_the_characters_of_each_token() -> None:
    decoder = begun(decode, stop=("cde",))
    told = [TokenChances(-1.0), TokenChances(-2.0), TokenChances(-3.0)]

    def lengths(*tokens: int) -> tuple[int, ...]:
        taken = decoder.take(Committed(tokens, chances=tuple(told[: len(tokens)])))
        assert isinstance(taken, Committed)
        return taken.lengths

    assert (lengths(0, 1, 2), decoder.text.committed) == ((1, 1, 0), "ab")
    assert (lengths(5), decoder.text.committed) == ((2,), "abcf")
    likely, unlikely = math.exp(-1.0), math.exp(-2.0)
    assert decoder.text.runs == (TextRun(1, None, likely), TextRun(1, None, unlikely), TextRun(2, None, likely))
    assert decoder.take(Committed((0,))) == Committed((0,), text="a")


@given(st.lists(st.lists(st.sampled_from(list("aéz€".encode())), min_size=1)), st.lists(TOKEN), st.data())
def test_a_kept_answer_continues_wherever_its_program_ended(
    verdicts: list[list[int]], written: list[int], data: st.DataObject
) -> None:
    def decode(tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    events = [Committed(tuple(tokens)) for tokens in verdicts]
    at = data.draw(st.integers(0, len(events)))
    decided_from = data.draw(st.integers(0, at))
    whole, before, after = (begun(decode, ("zza",)) for _ in range(3))
    for place, event in enumerate(events):
        if place == decided_from:
            whole.take(Provisional((0x61,)))
            whole.take(Ended(Finish.UNFINISHED, provisional=True))
            whole.take(Earlier(Corrected(1)))
        whole.take(Earlier(event) if place >= decided_from else event)
        if place < at:
            before.take(event)
    if decided_from == len(events):
        whole.take(Ended(Finish.UNFINISHED, provisional=True))
    committed = [token for tokens in verdicts[:at] for token in tokens]
    count = sum(len(tokens) for tokens in verdicts[:decided_from])
    after.text.committed, after.text.decided = before.text.committed, len(committed) - count
    after.restore(committed, written)
    assert after.text.committed == before.text.committed
    assert after.text.waiting == tuple(written)
    after.take(Earlier(Corrected(len(written))))
    for event in events[at:]:
        after.take(Earlier(event))
    rest = tuple(token for tokens in verdicts[decided_from:] for token in tokens)
    for decoder in (whole, after):
        decoder.take(Settled((*rest, 0x61), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS))
    assert after.text.committed == whole.text.committed


def test_a_settled_answer_ends_before_its_stop_string() -> None:
    decoder = begun(decode, ("zz",))
    decoder.take(Committed((0, 25)))
    decoder.take(Provisional((2,)))
    decoder.take(Ended(Finish.MAX_TOKENS, provisional=True))
    decoder.take(Settled((25,), AnswerOutcome.CORRECTED, Finish.STOP))
    assert decoder.text.committed == "a"


@given(st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=6), st.lists(TOKEN, min_size=1, max_size=6))
def test_settled_text_is_that_of_the_committed_tokens(first: list[int], alone: list[int], then: list[int]) -> None:
    decoder = begun(decode, ("ab",))
    decoder.take(Committed(tuple(first)))
    if alone:
        decoder.take(Provisional(tuple(alone)))
    decoder.take(Ended(Finish.CANCELLED, provisional=True))
    decoder.take(Settled(tuple(then), AnswerOutcome.CORRECTED, Finish.CANCELLED))
    assert decoder.text.committed == decode([*first, *then]).split("ab")[0]
    assert decoder.text.tokens == len(first) + len(then)


@given(st.text("añ€😀", max_size=12), st.data())
def test_pieces_that_are_corrected_inside_a_character_join_to_the_whole_text(text: str, data: st.DataObject) -> None:
    decoder = begun(decode_bytes)
    pieces: list[str] = []
    for event in data.draw(events_of(text)):
        pieces.append(take(decoder, event))
        assert "\ufffd" not in decoder.text.committed
    assert "".join(pieces) == decoder.text.committed == text
    assert decoder.text.tokens == len(text.encode())


def whole_text(tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Of tokens that are decoded from the first one on."""
    stream = TextStream(decode_bytes, stop)
    return "".join([stream.push((token,)) for token in tokens])


@given(st.text("añ€😀z", max_size=12), st.sampled_from([(), ("zz",), ("a€", "zzz")]), st.data())
def test_text_is_at_any_time_that_of_all_tokens_however_events_divide_them(
    text: str, stop: tuple[str, ...], data: st.DataObject
) -> None:
    decoder = begun(decode_bytes, stop)
    committed: list[int] = []
    waiting: list[int] = []
    for event in data.draw(events_of(text)):
        decoder.take(event)
        match event.event if isinstance(event, Earlier) else event:
            case Committed(tokens, confirmed):
                committed += tokens
                del waiting[:confirmed]
            case Provisional(tokens):
                waiting += tokens
            case Corrected():
                waiting.clear()
            case Ended() | Settled():
                break  # after which the rest of the text is shown, finished or not
        assert decoder.text.committed == whole_text(committed, stop)
        assert decoder.text.committed + decoder.text.provisional == whole_text([*committed, *waiting], stop)
        assert decoder.text.waiting == tuple(waiting)


def test_a_token_is_decoded_when_it_is_shown_and_when_it_is_confirmed_never_again() -> None:
    calls = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal calls
        calls += len(tokens)
        return decode(tokens)

    def cost(count: int) -> int:
        nonlocal calls
        calls, decoder = 0, begun(counted)
        for _ in range(count):
            decoder.take(Provisional((1,)))
        for _ in range(count):
            decoder.take(Committed((1,), 1))
        assert decoder.text.committed == "b" * count
        return calls

    for count in (100, 400):
        assert cost(count) <= 6 * count  # each time also as the token before, and before the next one


DRAFT, SERVER, TARGET = Provenance.DRAFT, Provenance.SERVER, Provenance.TARGET


def test_a_surface_that_wants_runs_holds_those_of_the_conversation() -> None:
    told, shown = Told(decode_bytes, "why?", 1), AnswerText("why?", 1)
    start, snow, held = b"ab", "☃".encode(), "☃".encode()[:2]
    events: list[AnswerEvent] = [
        Committed(tuple(start), writers=(DRAFT, SERVER)),
        Committed(tuple(snow), writers=(SERVER, SERVER, TARGET)),  # the last byte makes the character
        Committed(tuple(held), writers=(DRAFT, DRAFT)),
        Ended(Finish.END_OF_TEXT),
    ]
    for event in events:
        fields = json.loads(json.dumps(fields_of(told.tell(event), with_runs=True)))
        shown.apply(update_of(fields).event)
    assert shown.runs == told.text.runs
    assert shown.runs == (TextRun(1, DRAFT), TextRun(1, SERVER), TextRun(2, TARGET))
    assert "runs" not in fields_of(told.tell(events[0]))

"""The text of an answer, whatever was provisional in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_client.chat.messages import cost_details, cost_line
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, Corrections, TextStream, differing
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Provisional,
    Settled,
)
from moa_client.conversation.figures import Figures
from moa_client.conversation.options import AnswerOptions
from moa_client.surface.messages import fields_of, update_of
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule
from moa_shared.sampling.settings import TokenChances

from tests.support.answer_events import Told, decode_bytes, events_of
from tests.support.skipping import examples


@pytest.fixture(scope="module")
def default_tokenizer(default_model_files: ModelFiles) -> Any:
    return load_tokenizer(default_model_files)


def cut(text: str, stop: Sequence[str]) -> str:
    places = [at for string in stop if (at := text.find(string)) >= 0]
    return text[: min(places)] if places else text


@given(
    st.text(alphabet="abé€😀", max_size=30),
    st.lists(st.sampled_from(["ab", "ba€", "😀", "aab"]), max_size=3),
    st.data(),
)
def test_pieces_make_the_text_cut_at_the_first_stop_string(text: str, stop: list[str], data: st.DataObject) -> None:
    tokens = list(text.encode())
    stream = TextStream(decode_bytes, stop)
    given_out = ""
    while tokens:
        size = data.draw(st.integers(1, len(tokens)))
        given_out += stream.push(tokens[:size])
        tokens = tokens[size:]
        assert cut(text, stop).startswith(given_out)
        assert "\ufffd" not in given_out
    assert given_out + stream.finish() == cut(text, stop)


@given(st.text(alphabet="abé€😀", min_size=1, max_size=30), st.data())
def test_a_stream_that_had_ended_goes_on_where_it_was(text: str, data: st.DataObject) -> None:
    tokens, stop = list(text.encode()), ["ab€", "😀é"]
    at = data.draw(st.integers(0, len(tokens)))
    ended = TextStream(decode_bytes, stop)
    given_out = ended.push(tokens[:at]) + ended.finish(is_cut=True)
    stream = TextStream(decode_bytes, stop)
    stream.restore(tokens[:at], given_out)
    whole = given_out + stream.push(tokens[at:]) + stream.finish()
    if len(given_out) <= len(cut(text, stop)):
        assert whole == cut(text, stop)
    else:  # the beginning of a stop string, which might have become something else, was given out already
        assert whole == given_out


def test_nothing_is_held_back_without_need() -> None:
    stream = TextStream(decode_bytes, ["END"])
    assert stream.push(b"hello E") == "hello "
    assert stream.push(b"x") == "Ex"
    assert stream.push(b"EN") == ""
    assert stream.push(b"D more") == ""
    assert stream.finish() == ""


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 49151), max_size=25))
def test_with_the_real_tokenizer_pieces_make_the_decoded_text(default_tokenizer: Any, tokens: list[int]) -> None:
    def decode_all(some: Sequence[int]) -> str:
        text: str = default_tokenizer.decode(some, skip_special_tokens=True)
        return text

    stream = TextStream(decode_all)
    pieces = [stream.push([token]) for token in tokens]
    assert "".join(pieces) + stream.finish() == decode_all(tokens)


def test_a_stop_string_is_looked_for_in_the_text_that_is_shown(default_tokenizer: Tokenizer) -> None:
    """A special token between its halves is on nobody's screen, so the answer ends there."""
    special = default_tokenizer.encode("<|im_start|>")
    assert len(special) == 1
    tokens = [*default_tokenizer.encode("one STO"), *special, *default_tokenizer.encode("P two")]
    how = AnswerSettings(stop=("STOP",), ignore_end_of_text=True)
    rule = FinishRule(how, 1, 1000, frozenset(special), default_tokenizer.shown)
    taken, finish = rule.cut([], tokens)
    stream = TextStream(default_tokenizer.shown, how.stop)
    assert finish is Finish.STOP
    assert stream.push(taken) + stream.finish() == "one "
    spelled = AnswerSettings(stop=("<|im_start|>",), ignore_end_of_text=True)
    assert FinishRule(spelled, 1, 1000, frozenset(), default_tokenizer.shown).cut([], tokens)[1] is Finish.UNFINISHED


TOKEN = st.integers(0, 25)


def begun(decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> AnswerDecoder:
    return AnswerDecoder(AnswerText(options=AnswerOptions(stop=stop)), decode)


def letters_of(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_chances_come_with_the_characters_of_each_token() -> None:
    decoder = begun(letters_of, stop=("cde",))
    told = [TokenChances(-1.0), TokenChances(-2.0), TokenChances(-3.0)]

    def lengths(*tokens: int) -> tuple[int, ...]:
        taken = decoder.take_event(Committed(tokens, chances=tuple(told[: len(tokens)])))
        assert isinstance(taken, Committed)
        return taken.lengths

    assert (lengths(0, 1, 2), decoder.text.committed) == ((1, 1, 0), "ab")
    assert (lengths(5), decoder.text.committed) == ((2,), "abcf")
    assert decoder.text.runs == ((1, "", 0.3679), (1, "", 0.1353), (2, "", 0.3679))
    assert decoder.take_event(Committed((0,))) == Committed((0,), text="a")


@given(st.lists(st.lists(st.sampled_from(list("aéz€".encode())), min_size=1)), st.lists(TOKEN), st.data())
def test_a_kept_answer_continues_wherever_its_program_ended(
    verdicts: list[list[int]], written: list[int], data: st.DataObject
) -> None:
    events = [Committed(tuple(tokens)) for tokens in verdicts]
    at = data.draw(st.integers(0, len(events)))
    decided_from = data.draw(st.integers(0, at))
    whole, before, after = (begun(decode_bytes, ("zza",)) for _ in range(3))
    for place, event in enumerate(events):
        if place == decided_from:
            whole.take_event(Provisional((0x61,)))
            whole.take_event(Ended(Finish.UNFINISHED, provisional=True))
            whole.take_event(Earlier(Corrected(1)))
        whole.take_event(Earlier(event) if place >= decided_from else event)
        if place < at:
            before.take_event(event)
    if decided_from == len(events):
        whole.take_event(Ended(Finish.UNFINISHED, provisional=True))
    committed = [token for tokens in verdicts[:at] for token in tokens]
    count = sum(len(tokens) for tokens in verdicts[:decided_from])
    after.text.committed, after.text.decided = before.text.committed, len(committed) - count
    after.restore(committed, written)
    assert after.text.committed == before.text.committed
    assert after.text.waiting == tuple(written)
    after.take_event(Earlier(Corrected(len(written))))
    for event in events[at:]:
        after.take_event(Earlier(event))
    rest = tuple(token for tokens in verdicts[decided_from:] for token in tokens)
    for decoder in (whole, after):
        decoder.take_event(Settled((*rest, 0x61), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS))
    assert after.text.committed == whole.text.committed


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
        decoder.take_event(event)
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
        assert "\ufffd" not in decoder.text.committed
        assert decoder.text.committed + decoder.text.provisional == whole_text([*committed, *waiting], stop)
        assert decoder.text.waiting == tuple(waiting)


def test_a_token_is_decoded_when_it_is_shown_and_when_it_is_confirmed_never_again() -> None:
    calls = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal calls
        calls += len(tokens)
        return letters_of(tokens)

    def cost(count: int) -> int:
        nonlocal calls
        calls, decoder = 0, begun(counted)
        for _ in range(count):
            decoder.take_event(Provisional((1,)))
        for _ in range(count):
            decoder.take_event(Committed((1,), 1))
        assert decoder.text.committed == "b" * count
        return calls

    for count in (100, 400):
        assert cost(count) <= 6 * count  # each time also as the token before, and before the next one


def test_figures_say_what_an_answer_took() -> None:
    figures = Figures(tokens=21, verdicts=11, accepted=10, seconds=2.0, first_token_seconds=0.25, up_bytes=420)
    figures.down_bytes, figures.cpu_seconds = 2100, 0.105
    assert cost_line(figures) == "21 tokens in 2.0 s (10 tokens/s), first after 250 ms; 48 % drafted here; 2.1 kB down"
    assert cost_details(figures) == (
        "2.00 tokens a verification (11 steps), 20 bytes up and 100 down a token, 5.0 ms of this device's CPU a token"
    )
    alone = Figures(up_bytes=1542, provisional=3, undecided=3)
    assert (cost_line(alone), cost_details(alone)) == ("3 tokens; standalone 3 tokens, not checked yet", "")
    assert AnswerOptions(0.0, reasoning_effort="low").words() == "--temperature 0 --reasoning-effort low"


@pytest.mark.parametrize("is_far", [False, True], ids=["here", "in another process"])
@given(text=st.text("añ€😀", max_size=12), data=st.data())
def test_updates_add_up_to_the_text(is_far: bool, text: str, data: st.DataObject) -> None:
    told, shown = Told(decode_bytes, "why?", 3), AnswerText("why?", 3)
    before = ""
    for event in data.draw(events_of(text)):
        update = told.tell(event)
        shown.apply((update_of(json.loads(json.dumps(fields_of(update)))) if is_far else update).event)
        assert shown.committed == told.text.committed
        assert (shown.provisional, shown.waiting) == (told.text.provisional, told.text.waiting)
        assert shown.likely == told.text.likely <= len(shown.provisional)
        assert sum(run[0] for run in shown.runs) == len(shown.committed)
        assert shown.runs == told.text.runs
        assert shown.committed.startswith(before)
        before = shown.committed
    assert (shown.committed, shown.ended, shown.finish) == (text, told.text.ended, told.text.finish)


@given(st.text("ab  ", max_size=30), st.text("ab  ", max_size=30), st.data())
def test_corrections_do_not_depend_on_pieces(shown: str, text: str, data: st.DataObject) -> None:
    corrections = Corrections()
    corrections.update("", shown)
    corrections.update("", "")
    at = 0
    while at < len(text):
        end = data.draw(st.integers(at + 1, len(text)))
        corrections.update(text[at:end], "")
        at = end
    assert list(corrections.stretches) == differing(shown, text)


@pytest.mark.parametrize("finish", [Finish.UNFINISHED, Finish.MAX_TOKENS, Finish.CANCELLED])
def test_of_a_character_in_which_an_answer_is_cut_nothing_is_shown(finish: Finish) -> None:
    def cut() -> AnswerDecoder:
        decoder = begun(decode_bytes)
        decoder.take_event(Committed(tuple("né€".encode()[:-1])))
        return decoder

    broken, left, ended = cut(), cut(), cut()
    broken.break_off(Ended(Finish.CANCELLED))
    left.take_event(Ended(finish, provisional=True))
    ended.take_event(Ended(finish))
    assert broken.text.committed == left.text.committed + left.text.provisional == ended.text.committed == "né"
    left.take_event(Settled(tuple("€".encode()[-1:]), AnswerOutcome.CORRECTED, Finish.END_OF_TEXT))
    assert left.text.committed == "né€"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_client.conversation.answer_text import TextStream
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.protocol.finish_rule import AnswerSettings, Finish, FinishRule

from tests.support.properties import examples


@pytest.fixture(scope="module")
def default_tokenizer(default_model_files: ModelFiles) -> Any:
    return load_tokenizer(default_model_files)


def decode(tokens: Sequence[int]) -> str:
    """Tokens are bytes."""
    return bytes(tokens).decode("utf-8", errors="replace")


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
    stream = TextStream(decode, stop)
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
    ended = TextStream(decode, stop)
    given_out = ended.push(tokens[:at]) + ended.finish(is_cut=True)
    stream = TextStream(decode, stop)
    stream.restore(tokens[:at], given_out)
    whole = given_out + stream.push(tokens[at:]) + stream.finish()
    if len(given_out) <= len(cut(text, stop)):
        assert whole == cut(text, stop)
    else:  # the beginning of a stop string, which might have become something else, was given out already
        assert whole == given_out


def test_nothing_is_held_back_without_need() -> None:
    stream = TextStream(decode, ["END"])
    assert stream.push(b"hello E") == "hello "
    assert stream.push(b"x") == "Ex"
    assert stream.push(b"EN") == ""
    assert stream.push(b"D more") == ""
    assert stream.finish() == ""


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    stream = TextStream(decode)
    assert stream.push([0xE2, 0x82]) == ""
    assert stream.finish() == "\ufffd"


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

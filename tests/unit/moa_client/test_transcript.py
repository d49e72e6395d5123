"""The text of an answer, whatever was provisional in between."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from moa_client.events import Committed, Corrected, Ended, Provisional, Settled
from moa_client.transcript import Transcript
from moa_shared.answer import Finish

TOKEN = st.integers(0, 25)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_committed_text_stands_before_provisional_text() -> None:
    transcript = Transcript(decode)
    assert transcript.apply(Committed((0, 1))) == "ab"
    assert transcript.apply(Provisional((2, 3))) == ""
    assert (transcript.committed, transcript.provisional) == ("ab", "cd")
    assert transcript.apply(Committed((2,), confirmed=1)) == "c"
    assert (transcript.committed, transcript.provisional) == ("abc", "d")
    transcript.apply(Corrected(1))
    assert transcript.apply(Committed((4,))) == "e"
    assert (transcript.committed, transcript.provisional, transcript.waiting) == ("abce", "", [])


def test_an_answer_that_ended_alone_is_settled_from_where_it_was_committed() -> None:
    transcript = Transcript(decode, stop=("zz",), question="why")
    transcript.apply(Committed((0, 25)))  # a stop string may begin here
    transcript.apply(Provisional((2, 3)))
    assert transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True)) == ""
    assert (transcript.committed, transcript.provisional) == ("a", "zcd")
    assert transcript.finish is Finish.MAX_TOKENS
    assert transcript.apply(Settled((2, 5), True, Finish.END_OF_TEXT)) == "zcf"
    assert transcript.finish is Finish.END_OF_TEXT
    assert (transcript.committed, transcript.provisional, transcript.waiting) == ("azcf", "", [])


def test_a_settled_answer_ends_before_its_stop_string() -> None:
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    transcript.apply(Provisional((2,)))
    transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True))
    transcript.apply(Settled((25,), True, Finish.STOP))
    assert transcript.committed == "a"


def test_what_is_broken_off_shows_the_rest_of_the_committed_text() -> None:
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    assert transcript.break_off() == "z"
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    transcript.apply(Provisional((1,)))
    assert transcript.break_off() == ""  # it stands before what is provisional
    assert transcript.committed + transcript.provisional == "azb"


@given(st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=6), st.lists(TOKEN, min_size=1, max_size=6))
def test_settled_text_is_that_of_the_committed_tokens(first: list[int], alone: list[int], then: list[int]) -> None:
    transcript = Transcript(decode, stop=("ab",))
    transcript.apply(Committed(tuple(first)))
    if alone:
        transcript.apply(Provisional(tuple(alone)))
    transcript.apply(Ended(Finish.CANCELLED, provisional=True))
    transcript.apply(Settled(tuple(then), True, Finish.CANCELLED))
    assert transcript.committed == decode([*first, *then]).split("ab")[0]

"""The text of an answer, whatever was provisional in between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.events import Committed, Corrected, Earlier, Ended, Outcome, Provisional, Settled
from moa_client.conversation.transcript import Transcript
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import decode_bytes, events_of

TOKEN = st.integers(0, 25)


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def test_committed_text_is_before_provisional_text() -> None:
    transcript = Transcript(decode)
    assert transcript.apply(Committed((0, 1))) == "ab"
    assert transcript.apply(Provisional((2, 3))) == ""
    assert (transcript.committed, transcript.provisional) == ("ab", "cd")
    assert transcript.apply(Committed((2,), confirmed=1)) == "c"
    assert (transcript.committed, transcript.provisional) == ("abc", "d")
    transcript.apply(Corrected(1))
    assert transcript.apply(Committed((4,))) == "e"
    assert (transcript.committed, transcript.provisional, transcript.waiting) == ("abce", "", [])


def test_an_answer_that_ended_standalone_is_settled_from_where_it_was_committed() -> None:
    transcript = Transcript(decode, stop=("zz",), question="why")
    transcript.apply(Committed((0, 25)))  # a stop string may begin here
    transcript.apply(Provisional((2, 3)))
    assert transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True)) == ""
    assert (transcript.committed, transcript.provisional) == ("a", "zcd")
    finishes = [transcript.finish]
    assert transcript.apply(Settled((2, 5), Outcome.CORRECTED, Finish.END_OF_TEXT)) == "zcf"
    assert [*finishes, transcript.finish] == [Finish.MAX_TOKENS, Finish.END_OF_TEXT]
    assert (transcript.committed, transcript.provisional, transcript.waiting) == ("azcf", "", [])


def test_what_is_decided_after_the_end_comes_piece_by_piece() -> None:
    transcript = Transcript(decode)
    transcript.apply(Committed((0,)))
    transcript.apply(Provisional((2, 3)))
    transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True))
    assert transcript.apply(Earlier(Committed((2,), 1))) == "c"
    assert transcript.provisional == "d"
    transcript.apply(Earlier(Corrected(1)))
    assert transcript.apply(Earlier(Committed((5,)))) == "f"
    assert (transcript.committed, transcript.provisional, transcript.ended) == ("acf", "", "acd")
    assert transcript.apply(Settled((2, 5, 6), Outcome.CORRECTED, Finish.STOP)) == "g"


@given(st.lists(st.lists(st.sampled_from(list("aéz€".encode())), min_size=1)), st.lists(TOKEN), st.data())
def test_a_kept_answer_continues_wherever_its_program_ended(
    verdicts: list[list[int]], written: list[int], data: st.DataObject
) -> None:
    def decode(tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")

    events = [Committed(tuple(tokens)) for tokens in verdicts]
    at = data.draw(st.integers(0, len(events)))
    decided_from = data.draw(st.integers(0, at))
    whole, before, after = (Transcript(decode, stop=("zza",)) for _ in range(3))
    for place, event in enumerate(events):
        if place == decided_from:
            whole.apply(Provisional((0x61,)))
            whole.apply(Ended(Finish.UNFINISHED, provisional=True))
            whole.apply(Earlier(Corrected(1)))
        whole.apply(Earlier(event) if place >= decided_from else event)
        if place < at:
            before.apply(event)
    if decided_from == len(events):
        whole.apply(Ended(Finish.UNFINISHED, provisional=True))
    committed = [token for tokens in verdicts[:at] for token in tokens]
    count = sum(len(tokens) for tokens in verdicts[:decided_from])
    after.restore(committed, before.committed, written, count)
    assert after.committed == before.committed
    assert after.waiting == written
    after.apply(Earlier(Corrected(len(written))))
    for event in events[at:]:
        after.apply(Earlier(event))
    rest = tuple(token for tokens in verdicts[decided_from:] for token in tokens)
    for transcript in (whole, after):
        transcript.apply(Settled((*rest, 0x61), Outcome.CORRECTED, Finish.MAX_TOKENS))
    assert after.committed == whole.committed


def test_a_settled_answer_ends_before_its_stop_string() -> None:
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    transcript.apply(Provisional((2,)))
    transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True))
    transcript.apply(Settled((25,), Outcome.CORRECTED, Finish.STOP))
    assert transcript.committed == "a"


def test_what_is_broken_off_shows_the_rest_of_the_committed_text() -> None:
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    assert transcript.break_off() == "z"
    transcript = Transcript(decode, stop=("zz",))
    transcript.apply(Committed((0, 25)))
    transcript.apply(Provisional((1,)))
    assert transcript.break_off() == "z"
    assert (transcript.committed, transcript.provisional, transcript.waiting) == ("az", "", [])


@given(st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=6), st.lists(TOKEN, min_size=1, max_size=6))
def test_settled_text_is_that_of_the_committed_tokens(first: list[int], alone: list[int], then: list[int]) -> None:
    transcript = Transcript(decode, stop=("ab",))
    transcript.apply(Committed(tuple(first)))
    if alone:
        transcript.apply(Provisional(tuple(alone)))
    transcript.apply(Ended(Finish.CANCELLED, provisional=True))
    transcript.apply(Settled(tuple(then), Outcome.CORRECTED, Finish.CANCELLED))
    assert transcript.committed == decode([*first, *then]).split("ab")[0]
    assert transcript.tokens == len(first) + len(then)


@given(st.text("añ€😀", max_size=12), st.data())
def test_pieces_that_are_corrected_inside_a_character_join_to_the_whole_text(text: str, data: st.DataObject) -> None:
    transcript = Transcript(decode_bytes)
    pieces: list[str] = []
    for event in data.draw(events_of(text)):
        pieces.append(transcript.apply(event))
        assert "\ufffd" not in transcript.committed
    assert "".join(pieces) == transcript.committed == text
    assert transcript.tokens == len(text.encode())


@pytest.mark.parametrize("finish", [Finish.UNFINISHED, Finish.MAX_TOKENS, Finish.CANCELLED])
def test_of_a_character_in_which_an_answer_is_cut_nothing_is_shown(finish: Finish) -> None:
    def begun() -> Transcript:
        transcript = Transcript(decode_bytes)
        transcript.apply(Committed(tuple("né€".encode()[:-1])))
        return transcript

    broken, left, ended = begun(), begun(), begun()
    broken.break_off()
    left.apply(Ended(finish, provisional=True))
    ended.apply(Ended(finish))
    assert broken.committed == left.committed + left.provisional == ended.committed == "né"
    left.apply(Settled(tuple("€".encode()[-1:]), Outcome.CORRECTED, Finish.END_OF_TEXT))
    assert left.committed == "né€"


def test_a_broken_character_that_the_target_has_written_is_shown() -> None:
    transcript = Transcript(decode_bytes)
    transcript.apply(Committed(tuple("né€".encode()[:-1])))
    transcript.apply(Ended(Finish.END_OF_TEXT))
    assert transcript.committed == "né\ufffd"

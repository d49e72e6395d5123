"""The text of an answer, whatever was provisional in between."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.events import Committed, Corrected, Earlier, Ended, Outcome, Provisional, Settled
from moa_client.conversation.transcript import Transcript
from moa_shared.protocol.finish_rule import Finish

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
    assert transcript.break_off() == ""  # it stands before what is provisional
    assert transcript.committed + transcript.provisional == "azb"


@given(st.lists(TOKEN, max_size=6), st.lists(TOKEN, max_size=6), st.lists(TOKEN, min_size=1, max_size=6))
def test_settled_text_is_that_of_the_committed_tokens(first: list[int], alone: list[int], then: list[int]) -> None:
    transcript = Transcript(decode, stop=("ab",))
    transcript.apply(Committed(tuple(first)))
    if alone:
        transcript.apply(Provisional(tuple(alone)))
    transcript.apply(Ended(Finish.CANCELLED, provisional=True))
    transcript.apply(Settled(tuple(then), Outcome.CORRECTED, Finish.CANCELLED))
    assert transcript.committed == decode([*first, *then]).split("ab")[0]


@given(st.text("añ€😀", max_size=12), st.data())
def test_pieces_that_are_corrected_inside_a_character_join_to_the_whole_text(text: str, data: st.DataObject) -> None:
    """Tokens are bytes here, so that every event may cut a character in pieces."""
    whole = list(text.encode())
    transcript = Transcript(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    pieces: list[str] = []
    waiting = 0
    end = data.draw(st.integers(0, len(whole)))  # where the link is lost for good
    done = 0
    while done < end:
        kind = data.draw(st.sampled_from(["commit", "write", "correct"]))
        if kind == "write":
            guess = data.draw(st.lists(st.sampled_from(whole), min_size=1, max_size=5))
            right = whole[done + waiting : done + waiting + 3] if data.draw(st.booleans()) else []
            transcript.apply(Provisional((*right, *guess)))
            waiting += len(right) + len(guess)
        elif kind == "correct" and waiting:
            transcript.apply(Corrected(waiting))
            waiting = 0
        else:
            new = tuple(whole[done : done + data.draw(st.integers(1, 4))])
            held = transcript.waiting[: len(new)]
            confirmed = next((at for at, (a, b) in enumerate(zip(held, new, strict=False)) if a != b), len(held))
            if confirmed:
                pieces.append(transcript.apply(Committed(new[:confirmed], confirmed)))
                waiting -= confirmed
            if confirmed < len(new):
                if waiting:
                    transcript.apply(Corrected(waiting))
                    waiting = 0
                pieces.append(transcript.apply(Committed(new[confirmed:])))
            done += len(new)
        assert "\ufffd" not in transcript.committed
    transcript.apply(Ended(Finish.MAX_TOKENS, provisional=True))
    pieces.append(transcript.apply(Settled(tuple(whole[done:]), Outcome.CORRECTED, Finish.MAX_TOKENS)))
    assert "".join(pieces) == transcript.committed == text


@pytest.mark.parametrize("finish", [Finish.UNFINISHED, Finish.MAX_TOKENS, Finish.CANCELLED])
def test_of_a_character_in_which_an_answer_is_cut_nothing_is_shown(finish: Finish) -> None:
    def begun() -> Transcript:
        transcript = Transcript(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
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
    transcript = Transcript(lambda tokens: bytes(tokens).decode("utf-8", "replace"))
    transcript.apply(Committed(tuple("né€".encode()[:-1])))
    transcript.apply(Ended(Finish.END_OF_TEXT))
    assert transcript.committed == "né\ufffd"

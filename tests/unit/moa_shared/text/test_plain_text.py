from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, error_from_code
from moa_shared.protocol.handshake_checks import MAX_TEXT_CHARACTERS, clean_texts
from moa_shared.text.plain_text import plain_line, without_controls

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"


def controls(text: str) -> set[str]:
    return {character for character in text if unicodedata.category(character) == "Cc"}


@given(st.text())
def test_no_control_character_passes(text: str) -> None:
    assert controls(without_controls(text)) <= {"\n"}
    assert not controls(plain_line(text))
    assert plain_line(plain_line(text)) == plain_line(text)


def test_ordinary_text_stays_as_it_is() -> None:
    text = "Grüße an 漢字 \N{RIGHT-TO-LEFT MARK}שלום 👩‍🚀"
    assert without_controls(text + "\nmore") == text + "\nmore"
    assert plain_line(text) == text
    assert plain_line("one\r\ntwo\tthree") == "one two    three"
    assert plain_line("a\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe") == "a\N{REPLACEMENT CHARACTER}gpj.exe"


def test_every_text_of_a_message_is_cleaned() -> None:
    message = pb.DescribeResponse(
        server_version=CLIPBOARD,
        identity=pb.Identity(target_id="tiny" + CLIPBOARD, target_fingerprint=b"\x1b" * 32),
        execution=pb.Execution(level="int8\x9b2J", exact=True),
        drafters=[pb.Drafter(name="deep\n\x1b[2J")],
    )
    clean_texts(message)
    assert "\\033" not in str(message.identity.target_id) + str(message.drafters)
    assert not controls(message.server_version + message.identity.target_id + message.execution.level)
    assert message.identity.target_fingerprint == b"\x1b" * 32
    sampling = pb.Sampling(stop=["a", "\x1b"])
    clean_texts(sampling)
    assert sampling.stop == ["a", "\N{REPLACEMENT CHARACTER}"]
    away = pb.GoAway(reason="x" * 10_000)
    clean_texts(away)
    assert len(away.reason) == MAX_TEXT_CHARACTERS


def test_errors_are_one_line_wherever_their_words_come_from() -> None:
    for error in (
        error_from_code("mismatch", f"Not\nhere{CLIPBOARD}.", f"Do this.{CLIPBOARD}"),
        MismatchError("target model", f"evil{CLIPBOARD}", "tiny"),
    ):
        assert not controls(str(error))
        assert not controls(error.hint)

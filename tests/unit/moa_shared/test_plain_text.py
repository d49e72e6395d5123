"""What is no text: halves of surrogate pairs, wherever they come from; and errors as they are told."""

import unicodedata

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa.v1 import moa_pb2 as pb
from moa_shared import errors
from moa_shared.errors import CATALOGUE, InternalError, MismatchError, MoaError, error_from_code
from moa_shared.plain_text import is_text, marked_text, parse_request, plain_line, without_controls
from moa_shared.protocol.handshake_checks import MAX_TEXT_CHARACTERS, clean_texts

from tests.support.messages import says

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
    assert (without_controls(text + "\nmore"), plain_line(text)) == (text + "\nmore", text)
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
        MismatchError("target model", f"evil{CLIPBOARD}", "tiny" * 1000),
    ):
        assert not controls(str(error))
        assert len(error.message) <= 2000
        assert not controls(error.hint)


ANY = st.text(st.characters(codec=None))  # halves too


@given(ANY)
def test_what_is_text_can_be_written(string: str) -> None:
    try:
        string.encode()
    except UnicodeEncodeError:
        assert not is_text(string)
    else:
        assert is_text(string)
    marked = marked_text(string)
    assert is_text(marked)
    assert len(marked) == len(string)
    assert (marked == string) is is_text(string)


@pytest.mark.parametrize(
    ("body", "value"),
    [(r'{"a": ["\ud83d \\"]}', {"a": ["\ufffd \\"]}), (r'{"\udce9": 1}', {"\ufffd": 1}), (b'"\xed\xa0\x80"', "\ufffd")],
    ids=["a value", "a name", "bytes"],
)
def test_requests_hold_text_alone(body: str | bytes, value: object) -> None:
    assert parse_request(body) == value


def test_brackets_that_are_nested_too_deeply_are_refused() -> None:
    with says(ValueError, "its brackets are nested too deeply"):
        parse_request("[" * 100_000 + "]" * 100_000)


@pytest.mark.parametrize("cls", CATALOGUE.values(), ids=lambda cls: cls.__name__)
def test_every_error_has_a_status_an_exit_code_and_says_what_to_do(cls: type[MoaError]) -> None:
    assert cls.grpc_status in grpc.StatusCode.__members__
    assert 0 < cls.exit_code < 256
    assert cls.code == "cancelled" or cls.default_hint.endswith(".")


def test_codes_name_one_class_each() -> None:
    classes = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, MoaError)]
    assert len(classes) > 10
    assert sorted(cls.code for cls in classes if cls is not MoaError) == sorted(CATALOGUE)


def test_an_error_is_rebuilt_from_what_the_peer_sent() -> None:
    error = error_from_code("mismatch", "The target model does not match.", "Do this.")
    assert isinstance(error, MismatchError)
    assert str(error) == "The target model does not match. Do this."
    assert isinstance(error_from_code("from the future", "m", "h"), InternalError)

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_shared.errors import ConfigError
from moa_shared.protocol.invitation import PREFIX, Invitation, read_invitation

from tests.support.messages import raises

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=255)
INVITATIONS = st.builds(Invitation, WORDS, WORDS, st.binary(max_size=600))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NOT_WHOLE = snapshot(
    "The invitation is not whole: letters are missing or changed. Paste the whole line that `moa-server setup` or `moa-server invite` has printed."
)


@given(INVITATIONS, st.integers(20, 200))
def test_what_is_written_is_read_however_a_terminal_breaks_it(invitation: Invitation, width: int) -> None:
    line = invitation.line()
    assert read_invitation(line) == invitation
    assert read_invitation("\n".join(textwrap.wrap(line, width)) + "\r\n") == invitation


@given(INVITATIONS, st.data())
def test_a_line_that_is_cut_or_changed_is_noticed(invitation: Invitation, data: st.DataObject) -> None:
    line = invitation.line()
    place = data.draw(st.integers(len(PREFIX), len(line) - 1))
    other = data.draw(st.sampled_from([letter for letter in [*ALPHABET, ""] if letter != line[place]]))
    for wrong in (line[:place], line[:place] + other + line[place + 1 :], line + other):
        if wrong != line:
            with raises(ConfigError, NOT_WHOLE):
                read_invitation(wrong)


@given(st.text(max_size=300))
def test_nothing_else_is_an_invitation(text: str) -> None:
    for wrong in (text, PREFIX + text):
        with pytest.raises(ConfigError):
            read_invitation(wrong)


def test_it_is_short_and_shows_no_key_by_accident() -> None:
    invitation = Invitation("[2001:db8::1]:50051", "moa_ab12_" + "s" * 43, bytes(420))
    assert len(invitation.line()) < 750
    assert "sss" not in repr(invitation)


def test_words() -> None:
    found = []
    for text in (" ", "ssh-ed25519 AAAA", "moa2_abc", PREFIX + "x" * 9000, PREFIX + "AAAA"):
        with pytest.raises(ConfigError) as caught:
            read_invitation(text)
        found.append(str(caught.value))
    assert found[3:] == [NOT_WHOLE] * 2
    assert found[:3] == snapshot(
        [
            "There is no invitation. Paste the whole line that `moa-server setup` or `moa-server invite` has printed.",
            "An invitation begins with moa1_, this text does not. Paste the whole line that `moa-server setup` or `moa-server invite` has printed.",
            "This invitation is of another version of moa. Install the server's version.",
        ]
    )
    with raises(ConfigError, snapshot("The address has 256 bytes, an invitation holds 255. Use a shorter one.")):
        Invitation("h" * 256, "k").line()

from __future__ import annotations

from dataclasses import replace

from inline_snapshot import snapshot
from moa_client.chat.commands.table import help_text
from moa_client.chat.messages import Unchecked, drafter_words, execution_words, status_line, unchecked
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.events import LinkState
from moa_client.surface.open_conversation import ConversationFacts


def test_everything_that_is_known_is_said() -> None:
    status = LinkStatus(LinkState.SLOW, 151.4, 12.34, 0.22, 1234, 45_600, by_server=0.4, memory_bytes=38_100)
    assert status_line(status) == (
        "link slow | RTT 151 ms | 12.3 tokens/s | 62 % drafted: 40 % by the server, 22 % here | "
        "1.2 kB up, 45.6 kB down (38.1 kB for the drafter)"
    )


def test_what_becomes_of_unchecked_text_is_said_in_words() -> None:
    away, there = (LinkStatus(state, None, 0.0, 0.0, 0, 0) for state in (LinkState.OFFLINE, LinkState.GOOD))
    assert status_line(away, Unchecked(12, 2), "the server is silent") == (
        "link OFFLINE (the server is silent) | 12 words to be checked"
    )
    assert status_line(there, Unchecked(12, 2)) == "link good | the server checks 12 words"
    assert status_line(there, Unchecked(1, 0)) == "link good | the server checks 1 word"
    assert status_line(there, Unchecked(0, 1)) == "link good | the server finishes 1 answer"
    assert status_line(away, Unchecked(0, 2)) == "link OFFLINE | 2 answers to be finished"
    assert unchecked(["two words", "", "three\n"], 2) == Unchecked(3, 2)


def test_once_it_is_checked_it_says_how_much_was_right() -> None:
    there = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0, 24, 15)
    assert status_line(there) == "link good | alone 24 tokens, 15 kept"
    assert "alone" not in status_line(there, Unchecked(3))


def test_ctrl_o_is_offered_to_who_can_type() -> None:
    away = LinkStatus(LinkState.OFFLINE, None, 0.0, 0.0, 0, 0, holds_back=True)
    assert status_line(away) == "waiting for the server (Ctrl-O: keep writing) | link OFFLINE"
    assert status_line(away, has_keys=False) == "waiting for the server | link OFFLINE"
    assert "Ctrl-O" in help_text()


def test_what_waits_for_the_next_prompt_is_counted() -> None:
    good = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
    assert status_line(good, typed_ahead=7) == "link good | 7 typed ahead"


def test_a_status_says_who_drafts_and_how_exact_the_text_is() -> None:
    bare = ConversationFacts("", "", "tiny", "host:1", online=False)
    assert (drafter_words(bare), execution_words(bare)) == ("no drafter that reads memory", "")
    paired = replace(bare, level="int8", drafter="online", drafter_reason="the fastest here", alone="deep")
    assert drafter_words(paired) == snapshot("""\
drafter online: the fastest here
deep writes while no server answers\
""")
    assert drafter_words(replace(paired, alone="")) == snapshot("drafter online: the fastest here")
    assert execution_words(paired) == snapshot("execution int8: the text does not depend on what is verified together")
    assert execution_words(replace(paired, level="bf16", exact=False)) == snapshot(
        "execution bf16: the text may depend on what is verified together"
    )

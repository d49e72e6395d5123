"""What each server would have to read of a conversation."""

from __future__ import annotations

from moa_client.link.server_choice import UnreadText
from moa_shared.protocol.prefix_hash import PrefixHashes


def test_a_server_reads_what_it_has_not_said_to_hold() -> None:
    text = PrefixHashes(range(100))
    reading = UnreadText(text)
    assert reading.prefix_hashes == [text.at(64)]
    reading.on_described("one", 64)
    assert (reading.unread("one"), reading.unread("two")) == (36, 100)
    text.extend(range(50))
    assert (reading.unread("one"), reading.unread("two")) == (86, 150)
    assert reading.prefix_hashes == [text.at(64), text.at(128)]
    text.crop(10)
    assert (reading.unread("one"), reading.unread("two"), reading.prefix_hashes) == (0, 10, [])


def test_the_server_of_the_conversation_holds_all_of_it() -> None:
    """Also one that does not say so, as it shares nothing."""
    reading = UnreadText(PrefixHashes(range(100)))
    reading.on_served("one")
    reading.on_described("one", 0)
    assert (reading.unread("one"), reading.unread("two")) == (0, 100)
    reading.on_served("two")
    assert (reading.unread("one"), reading.unread("two")) == (100, 0)

"""Conversations of which one cannot be continued: the others can, and nobody holds it for good."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa_client.history.records import ConversationOrigin
from moa_client.host.library import Library


class Conversation:
    """One that is continued as it is kept, or fails."""

    watchers, is_answering, engine = 0, False, SimpleNamespace(unsettled=1)
    answers: Sequence[int] = ()

    def resume(self, stored: Any) -> None:
        if stored.identifier == "bad":
            raise ZeroDivisionError
        self.answers = [1]


class Store:
    """A history with conversations in which a server has something to decide.

    Args:
        targets: with which model each is.
    """

    def __init__(self, **targets: bytes) -> None:
        self.held: set[str] = set()
        self.targets = targets

    def list(self, *, unverified_only: bool) -> list[Any]:
        return [self.load(name) for name in self.targets]

    def load(self, identifier: str) -> Any:
        origin = SimpleNamespace(target=self.targets[identifier], tokenizer=b"k", system=None)
        return SimpleNamespace(identifier=identifier, origin=origin, title="")

    def reopen(self, identifier: str) -> Any:
        self.held.add(identifier)
        return self.load(identifier)

    def set_origin(self, identifier: str, origin: ConversationOrigin) -> None:
        self.targets[identifier] = origin.target

    def release(self, identifier: str) -> None:
        self.held.discard(identifier)

    def close(self) -> None:
        """Nothing is open."""


class Host:
    """Makes conversations, and knows which were left."""

    device = SimpleNamespace(
        identity=SimpleNamespace(target_fingerprint=b"t", tokenizer_hash=b"k"),
        companion=SimpleNamespace(fingerprint=b"small".hex()),
        files=SimpleNamespace(target_id="large"),
        level="",
    )
    link = SimpleNamespace(address="host:1")

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []

    def converse(self, **_: Any) -> Conversation:
        self.conversations.append(Conversation())
        return self.conversations[-1]

    async def leave(self, conversation: Conversation) -> None:
        self.conversations.remove(conversation)


async def test_a_conversation_that_cannot_be_continued_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    host, store = Host(), Store(bad=b"t", good=b"t")
    library = Library(cast("Any", host), cast("Any", store))
    library.reopen_unverified()
    assert list(library.open_conversations) == ["good"]
    assert "bad is left as it is" in caplog.text
    await library.close()
    assert (host.conversations, store.held) == ([], set())


async def test_what_the_companion_has_begun_is_with_the_target_from_here_on() -> None:
    store = Store(good=b"small", strange=b"other")
    library = Library(cast("Any", Host()), cast("Any", store))
    library.reopen_unverified()
    assert list(library.open_conversations) == ["good"]
    assert store.targets == {"good": b"t", "strange": b"other"}
    await library.close()

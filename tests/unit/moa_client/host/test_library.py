"""Conversations of which one cannot be continued: the others can, and nobody holds it for good."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
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
    """A history with two conversations in which a server has something to decide."""

    def __init__(self) -> None:
        self.held: set[str] = set()

    def list(self, *, unverified_only: bool) -> list[Any]:
        return [self.load(name) for name in ("bad", "good")]

    def load(self, identifier: str) -> Any:
        origin = SimpleNamespace(target=b"t", tokenizer=b"k", system=None)
        return SimpleNamespace(identifier=identifier, origin=origin, title="")

    def reopen(self, identifier: str) -> Any:
        self.held.add(identifier)
        return self.load(identifier)

    def release(self, identifier: str) -> None:
        self.held.discard(identifier)

    def close(self) -> None:
        """Nothing is open."""


class Host:
    """Makes conversations, and knows which were left."""

    device = SimpleNamespace(identity=SimpleNamespace(target_fingerprint=b"t", tokenizer_hash=b"k"))

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []

    def converse(self, **_: Any) -> Conversation:
        self.conversations.append(Conversation())
        return self.conversations[-1]

    async def leave(self, conversation: Conversation) -> None:
        self.conversations.remove(conversation)


async def test_a_conversation_that_cannot_be_continued_is_left_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    host, store = Host(), Store()
    library = Library(cast("Any", host), cast("Any", store))
    library.reopen_unverified()
    assert list(library.open_conversations) == ["good"]
    assert "bad is left as it is" in caplog.text
    await library.close()
    assert (host.conversations, store.held) == ([], set())

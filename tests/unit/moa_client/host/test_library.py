"""Conversations of which one cannot be continued: the others can, and nobody holds it for good."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa_client.conversation.options import AnswerOptions
from moa_client.history.reading import ConversationOrigin
from moa_client.history.store import HistoryStore
from moa_client.host.library import Library


class Conversation:
    engine, task = SimpleNamespace(unsettled=1), SimpleNamespace(is_answering=False)

    def __init__(self) -> None:
        self.publisher = SimpleNamespace(answers=[], subscriptions=[])

    def resume(self, stored: Any) -> None:
        if stored.title == "bad":
            raise ZeroDivisionError
        self.publisher.answers = [1]


def kept(folder: Path, **targets: bytes) -> HistoryStore:
    """A history with conversations in which a server has something to decide, by their titles; with which model."""
    store = HistoryStore(folder)
    for title, target in targets.items():
        name = store.create(ConversationOrigin("m", target, b"k"), title)
        store.end_answer(store.begin_answer(name, "Why?", AnswerOptions()), "max_tokens", verified=False)
    return store


def titles(store: HistoryStore, library: Library) -> list[str]:
    return [store.load(name).title for name in library.open_conversations]


IDENTITY = SimpleNamespace(target_fingerprint=b"t", tokenizer_hash=b"k")


class Host:
    device = SimpleNamespace(
        identity=IDENTITY,
        companion=SimpleNamespace(fingerprint=b"small".hex()),
        target=SimpleNamespace(files=SimpleNamespace(target_id="large"), level="", identity=IDENTITY),
    )
    link = SimpleNamespace(shown=SimpleNamespace(address="host:1"))

    def __init__(self) -> None:
        self.conversations: list[Conversation] = []

    def converse(self, **_: Any) -> Conversation:
        self.conversations.append(Conversation())
        return self.conversations[-1]

    async def leave(self, conversation: Conversation) -> None:
        self.conversations.remove(conversation)


async def test_each_conversation_is_continued_with_its_model_and_one_that_cannot_be_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the companion has begun is with the target from here on."""
    host, store, released = Host(), kept(tmp_path, bad=b"t", good=b"small", strange=b"other"), set[str]()
    names = {each.title: each.identifier for each in store.list()}
    library = Library(cast("Any", host), store)
    monkeypatch.setattr(store, "release", released.add)
    await library.reopen_unverified()
    assert titles(store, library) == ["good"]
    assert f"{names['bad']} is left as it is" in caplog.text
    targets = {each.title: store.load(each.identifier).origin.target for each in store.list()}
    assert targets == {"bad": b"t", "good": b"t", "strange": b"other"}
    await library.close()
    assert (host.conversations, released) == ([], {names["bad"], names["good"]})

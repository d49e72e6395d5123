"""Keys that answer a question about a call, over a pipe in place of a terminal."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from moa_client.chat.messages import ASK_WORDS
from moa_client.chat.permission import KeyPermission, unasked
from moa_client.conversation.events import CallWanted, Permission

WANTED = CallWanted("call_1", "add", "{}", "test")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ours, theirs = os.pipe()
    yield ours, theirs
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(("keys", "permission"), [("y", "once"), ("N", "denied"), ("xä\ra", "always")])
async def test_a_key_answers_but_none_that_was_typed_before_the_question(
    pipe: tuple[int, int], keys: str, permission: str
) -> None:
    ours, theirs = pipe
    said: list[str] = []

    def say(words: str) -> None:
        said.append(words)
        os.write(theirs, keys.encode() + b"z")

    os.write(theirs, b"yes, and\r")
    asking = KeyPermission(ours, (), say)
    assert await asyncio.wait_for(asking(WANTED), 20) is Permission(permission)
    assert (said, asking.take_typed(), asking.take_typed()) == ([ASK_WORDS], "yes, and", "")
    assert os.read(ours, 9) == b"z"


async def test_what_is_allowed_is_not_asked_for_and_where_nobody_can_be_asked_the_rest_is_denied() -> None:
    said: list[str] = []
    assert await KeyPermission(-1, ("test/add",), said.append)(WANTED) is Permission.ALWAYS
    assert await unasked(("all",), said.append)(WANTED) is Permission.ALWAYS
    assert said == []
    assert await unasked(("add", "other/add"), said.append)(WANTED) is Permission.DENIED
    assert said == ["(add was not run, as nobody can be asked: --mcp-allow test/add lets it.)"]

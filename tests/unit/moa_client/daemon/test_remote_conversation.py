"""What a surface in another process knows of the conversation that it has open."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

from moa_client.chat.messages import model_words
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Failed, LinkState, ServerChanged
from moa_client.daemon.remote_conversation import RemoteConversation
from moa_client.surface.messages import encode_line, fields_of, opened_fields
from moa_client.surface.open_conversation import ConversationFacts


class Nowhere:
    """The socket's other direction."""

    def close(self) -> None:
        """Nothing is open."""

    async def wait_closed(self) -> None:
        """The same."""


def status(server: str, state: LinkState = LinkState.GOOD) -> LinkStatus:
    return LinkStatus(state, None, 0.0, 0.0, 0, 0, server=server)


async def test_after_a_fail_over_it_names_the_server_that_answers() -> None:
    reader = asyncio.StreamReader()
    facts = ConversationFacts("", "", "tiny", "first:1", online=True)
    opened = opened_fields(facts, status("first:1"), [])
    conversation = RemoteConversation(reader, cast("asyncio.StreamWriter", Nowhere()), opened)
    told = [status("first:1", LinkState.OFFLINE), status("second:2")]
    named = []
    async with aclosing(cast("Any", conversation.updates())) as updates:
        for each in told:
            event = ServerChanged("address", "second answers now instead of first.")
            reader.feed_data(encode_line(fields_of(Update(event, status=each))))
            await anext(updates)
            named.append(model_words(conversation.facts).splitlines()[0])
    assert named == ["tiny at first:1 (not there now)", "tiny at second:2"]
    await conversation.close()


async def test_when_the_daemon_says_what_cannot_be_read_the_conversation_is_to_be_opened_again() -> None:
    for line in (b"{\n", b'{"event": "dance"}\n', b'{"event": "committed"}\n', b"{}\n"):
        reader = asyncio.StreamReader()
        opened = opened_fields(ConversationFacts("", "", "tiny", "first:1", online=True), status("first:1"), [])
        conversation = RemoteConversation(reader, cast("asyncio.StreamWriter", Nowhere()), opened)
        reader.feed_data(line)
        async with asyncio.timeout(20), aclosing(cast("Any", conversation.updates())) as updates:
            [update] = [await anext(updates)]
        assert isinstance(update.event, Failed)
        assert update.event.taken_back
        await asyncio.sleep(0)
        assert conversation.is_gone
        await conversation.close()

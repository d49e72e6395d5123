"""Responses over a socket, asked for by OpenAI's library for Python, with answers that tests write."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from moa_client.history.responses import KeptResponse
from moa_client.history.store import HistoryStore
from moa_shared.errors import DiskFullError, UnavailableError
from openai.types.responses import FunctionToolParam, ResponseFunctionToolCall

from tests.support.scripted_answers import MODEL, Script, ScriptedSource, openai_client, saying, serving, silence

WORDS = ("Good", " day", ".")
ASKED: dict[str, Any] = {"model": MODEL, "input": "Hi there", "extra_body": {"seed": 5}}
NOW: FunctionToolParam = {
    "type": "function",
    "name": "now",
    "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}},
    "strict": True,
}
CALLING = ("Let me see.", '\n<tool_call>\n{"name": "now", "arguments": {"zo', 'ne": "UTC"}}\n</tool_call>')


@asynccontextmanager
async def asking(
    script: Script = silence, history: HistoryStore | None = None
) -> AsyncIterator[tuple[openai.AsyncOpenAI, ScriptedSource]]:
    source = ScriptedSource(script)
    async with serving(source, history=history) as server, openai_client(server.url) as client:
        yield client, source


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[HistoryStore]:
    made = HistoryStore(tmp_path / "history")
    yield made
    made.close()


async def created(client: openai.AsyncOpenAI, **more: Any) -> Any:
    """A response that is not streamed; `store`: whether it is kept."""
    return await client.responses.create(**{**ASKED, **more})


# ------------------------------------------------------------ answers


async def test_a_text_gets_a_response_whole_and_as_a_stream() -> None:
    async with asking(saying(*WORDS)) as (client, source):
        response = await created(client, instructions="Be kind.", temperature=0, metadata={"a": "b"})
        rendered = source.rendered
        async with client.responses.stream(**ASKED) as stream:
            final = await stream.get_final_response()
    assert (response.output_text, response.status, response.model) == ("Good day.", "completed", MODEL)
    assert response.id.startswith("resp_")
    assert (response.instructions, response.metadata, response.temperature) == ("Be kind.", {"a": "b"}, 0)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 3, 7)
    assert response.moa == {"seed": 5, "verified": True}
    assert response.store is False  # nothing is kept here
    assert rendered == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]
    assert final.output_text == "Good day."


# ------------------------------------------------------------ what is kept


async def test_a_response_continues_kept_ones_without_their_instructions(store: HistoryStore) -> None:
    async with asking(saying(*CALLING), history=store) as (client, source):
        first = await created(client, instructions="Be kind.", tools=[NOW])
        source.script = saying("Noon", ".")
        (call,) = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
        result = [{"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}]
        second = await created(client, input=result, previous_response_id=first.id)
        third = await created(client, input="Thanks.", previous_response_id=second.id, store=False)
    assert (first.store, second.previous_response_id, third.store) == (True, first.id, False)
    assert [message["role"] for message in source.rendered] == ["user", "assistant", "user", "assistant", "user"]
    assert [message["content"] for message in source.rendered][3:] == ["Noon.", "Thanks."]
    assert store.responses.count() == 2


async def test_a_kept_response_is_read_and_deleted(store: HistoryStore) -> None:
    async with asking(saying(*WORDS), history=store) as (client, source):
        made = await created(client)
        assert (await client.responses.retrieve(made.id)).to_dict() == made.to_dict()
        await created(client, previous_response_id=made.id)
        assert len(source.rendered) == 3
        await client.responses.delete(made.id)
        for gone in (client.responses.retrieve(made.id), client.responses.delete(made.id)):
            with pytest.raises(openai.NotFoundError):
                await gone
        with pytest.raises(openai.BadRequestError) as caught:
            await created(client, previous_response_id=made.id)
        with pytest.raises(openai.BadRequestError):
            await client.responses.retrieve("resp_1", stream=True)
    assert (caught.value.param, caught.value.code) == ("previous_response_id", "previous_response_not_found")


async def test_a_call_that_an_older_version_has_cut_is_not_continued(store: HistoryStore) -> None:
    said = {"type": "message", "status": "incomplete", "role": "assistant", "content": "See:"}
    call = {"type": "function_call", "status": "incomplete", "call_id": "1", "name": "now", "arguments": "{"}
    store.responses.keep(KeptResponse("resp_1", None, int(time.time()), "[]", json.dumps({"output": [said, call]})))
    async with asking(saying(*WORDS), history=store) as (client, source):
        await created(client, previous_response_id="resp_1")
    assert source.rendered[0] == {"role": "assistant", "content": "See:"}


async def test_nothing_is_kept_by_the_users_wish() -> None:
    async with asking(saying(*WORDS)) as (client, _):
        with pytest.raises(openai.BadRequestError, match="--no-history"):
            await created(client, store=True)
        with pytest.raises(openai.BadRequestError, match="--no-history"):
            await created(client, previous_response_id="resp_1")
        with pytest.raises(openai.NotFoundError, match="--no-history"):
            await client.responses.retrieve("resp_1")


async def test_what_cannot_be_kept_says_so_and_what_fails_or_whose_client_leaves_is_not(
    store: HistoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fill(_: KeptResponse) -> None:
        raise DiskFullError("The disk is full.", hint="Free some space.")

    async with asking(history=store) as (client, source):
        asked = asyncio.create_task(client.responses.create(**ASKED, stream=True))
        (await source.answer()).commit("Good")
        await (await asked).close()
        await source.answers[0].closed.wait()
        refused = asyncio.create_task(created(client))
        (await source.answer(2)).fail(UnavailableError("Nobody there.", hint=""))
        with pytest.raises(openai.InternalServerError):
            await refused
        assert store.responses.count() == 0
        monkeypatch.setattr(store.responses, "keep", fill)
        source.script = saying(*WORDS)
        made = await created(client)
    assert (made.output_text, made.store) == ("Good day.", False)
    assert "The disk is full" in caplog.text

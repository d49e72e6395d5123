"""Several answers to one question, asked for by OpenAI's library, with answers that tests write."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from moa_client.conversation.events import LinkState
from moa_client.endpoint.endpoint import EndpointSettings
from moa_shared.errors import UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.openai_client import openai_client
from tests.support.scripted_answers import MODEL, ScriptedAnswer, ScriptedSource, serving

ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi there"}], "seed": 5}


async def its_seed(answer: ScriptedAnswer) -> None:
    """Answers with its seed, in as many words as that is above the request's."""
    for _ in range(1 + (answer.options.seed or 0) % 5):
        answer.commit(f"{answer.options.seed} ")
    answer.end(Finish.END_OF_TEXT if answer.options.seed == 5 else Finish.MAX_TOKENS)


async def test_each_has_a_seed_of_its_own_and_usage_is_of_all() -> None:
    source = ScriptedSource(its_seed)
    async with serving(source) as server, openai_client(server.url) as client:
        whole = await client.chat.completions.create(n=3, **ASKED)
        texts = await client.completions.create(model=MODEL, prompt="Once upon a time", seed=-1, n=2)
    assert [(each.index, each.message.content, each.finish_reason) for each in whole.choices] == [
        (0, "5 ", "stop"),
        (1, "6 6 ", "length"),
        (2, "7 7 7 ", "length"),
    ]
    assert [each.model_extra for each in whole.choices] == [
        {"moa": {"seed": seed, "verified": True}} for seed in (5, 6, 7)
    ]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (2, 6, 8)
    assert [each.index for each in texts.choices] == [0, 1]
    assert [answer.options.seed for answer in source.answers[3:]] == [(1 << 64) - 1, 0]
    assert all(answer.closed.is_set() for answer in source.answers)


async def test_a_stream_has_the_index_of_each_piece_and_one_end() -> None:
    async with serving(ScriptedSource(its_seed)) as server, openai_client(server.url) as client:
        asked: dict[str, Any] = {**ASKED, "stream_options": {"include_usage": True}}
        stream = await client.chat.completions.create(n=3, stream=True, **asked)
        chunks = [chunk async for chunk in stream]
    texts, reasons = ["", "", ""], {}
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        assert choice.index not in reasons
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert texts == ["5 ", "6 6 ", "7 7 7 "]
    assert reasons == {0: "stop", 1: "length", 2: "length"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 8
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_several_prompts_are_answered_in_their_order_and_each_counts_once() -> None:
    source = ScriptedSource(its_seed)
    prompts: list[list[int]] = [[1, 2, 3], [4]]
    async with serving(source) as server, openai_client(server.url) as client:
        asked: dict[str, Any] = {"model": MODEL, "prompt": prompts, "seed": 5, "n": 2}
        whole = await client.completions.create(**asked)
        stream = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    assert [list(answer.prompt) for answer in source.answers] == 2 * [[1, 2, 3], [1, 2, 3], [4], [4]]
    assert [(each.index, each.text) for each in whole.choices] == [(0, "5 "), (1, "6 6 "), (2, "5 "), (3, "6 6 ")]
    texts = ["", "", "", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.text
    assert texts == [each.text for each in whole.choices]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (4, 6, 10)
    assert chunks[-1].usage == whole.usage


async def test_each_takes_a_turn_of_its_own() -> None:
    source, settings = ScriptedSource(), EndpointSettings(max_requests=2)
    async with serving(source, settings) as server, openai_client(server.url) as client:
        asking = asyncio.create_task(client.chat.completions.create(n=3, stream=True, **ASKED))
        (await source.answer(2)).commit("b")
        chunks = (await asking).__aiter__()
        assert (await anext(chunks)).choices[0].index == 0  # each begins
        assert len(source.answers) == 2
        (await source.answer(1)).end()
        for number in (2, 3):
            (await source.answer(number)).end()
        reasons = [each.choices[0].finish_reason async for each in chunks if each.choices]
    assert reasons.count("stop") == 3


async def test_one_that_fails_ends_all() -> None:
    source = ScriptedSource()
    async with serving(source) as server, openai_client(server.url) as client:
        asking = asyncio.create_task(client.chat.completions.create(n=2, stream=True, **ASKED))
        (await source.answer(1)).commit("a")
        stream = await asking
        (await source.answer(2)).fail(UnavailableError("Nobody there.", hint=""))
        with pytest.raises(openai.APIError, match="Nobody there"):
            [chunk async for chunk in stream]
        await source.answers[0].closed.wait()
        refused = client.chat.completions.create(n=2, **ASKED)
        source.script = lambda answer: _fail(answer)
        with pytest.raises(openai.InternalServerError):
            await refused


async def _fail(answer: ScriptedAnswer) -> None:
    answer.fail(UnavailableError("Nobody there.", hint=""))


async def test_one_that_no_server_verifies_is_marked_for_itself() -> None:
    source, settings = ScriptedSource(), EndpointSettings(settle_seconds=0.0, unverified="end")

    async def script(answer: ScriptedAnswer) -> None:
        answer.commit("a")
        if answer.options.seed == 5:
            answer.end()
        else:
            answer.write("b")
            answer.link(LinkState.OFFLINE)

    source.script = script
    async with serving(source, settings) as server, openai_client(server.url) as client:
        whole = await client.chat.completions.create(n=2, **ASKED)
    assert [each.message.content for each in whole.choices] == ["a", "ab"]
    assert whole.model_extra is not None
    assert whole.model_extra["moa"] == {"verified": False}
    assert whole.choices[1].model_extra == {"moa": {"seed": 6, "verified": False, "verified_characters": 1}}

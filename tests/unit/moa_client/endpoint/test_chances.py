"""Log probabilities over a socket, as OpenAI's library for Python reads them, with answers that tests write."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import LinkState
from moa_client.endpoint.endpoint import EndpointSettings
from moa_shared.protocol.finish_rule import Finish

from tests.support.scripted_answers import ScriptedAnswer
from tests.unit.moa_client.endpoint.test_endpoint import HI, asking

END = 99  # a token without text
TOKENS = (3, 0, 24, END)
ASKED: dict[str, Any] = {"model": "default", "prompt": [7, 8], "max_tokens": 4, "logprobs": 2}


async def speak(answer: ScriptedAnswer) -> None:
    """Says "day", in two steps, and ends."""
    answer.commit_tokens(*TOKENS[:2])
    answer.commit_tokens(*TOKENS[2:])
    answer.end()


async def test_a_chat_has_the_chances_of_each_token_and_of_the_likeliest() -> None:
    async with asking(speak) as (client, _):
        completion = await client.chat.completions.create(model="default", messages=HI, logprobs=True, top_logprobs=1)
    choice, usage = completion.choices[0], completion.usage
    assert choice.logprobs is not None
    content = choice.logprobs.content
    assert content is not None
    assert usage is not None
    assert len(content) == usage.completion_tokens
    assert "".join(token.token for token in content) == choice.message.content == "day"
    assert content[0].model_dump() == snapshot(
        {
            "token": "d",
            "bytes": [100],
            "logprob": -3.0,
            "top_logprobs": [{"token": "e", "bytes": [101], "logprob": -0.25}],
        }
    )
    assert content[3].model_dump() == snapshot(
        {"token": "", "bytes": [], "logprob": -99.0, "top_logprobs": [{"token": "", "bytes": [], "logprob": -0.25}]}
    )


@pytest.mark.parametrize("offered", [{}, {"tools": [{"type": "function", "function": {"name": "now"}}]}])
async def test_a_stream_has_each_token_once_with_its_text(offered: dict[str, Any]) -> None:
    async with asking(speak) as (client, _):
        asked: dict[str, Any] = {"model": "default", "messages": HI, "logprobs": True, **offered}
        stream = await client.chat.completions.create(**asked, stream=True)
        choices = [choice async for chunk in stream for choice in chunk.choices]
    told = [token for choice in choices if choice.logprobs is not None for token in choice.logprobs.content or []]
    assert [token.logprob for token in told] == [-float(token) for token in TOKENS]
    sent = listed = ""
    for choice in choices:
        sent += choice.delta.content or ""
        listed += "".join(token.token for token in (choice.logprobs.content or [] if choice.logprobs else []))
        assert sent == listed


async def test_a_text_has_lists_of_tokens() -> None:
    async with asking(speak) as (client, _):
        completion = await client.completions.create(**ASKED)
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.model_dump() == snapshot(
        {
            "text_offset": [0, 1, 2, 3],
            "token_logprobs": [-3.0, -0.0, -24.0, -99.0],
            "tokens": ["d", "a", "y", ""],
            "top_logprobs": [
                {"e": -0.25, "f": -0.5, "d": -3.0},
                {"b": -0.25, "c": -0.5, "a": -0.0},
                {"z": -0.25, "": -0.5, "y": -24.0},
                {"": -0.25},
            ],
        }
    )


async def test_tokens_without_chances_are_an_error_and_no_guess() -> None:
    async def untold(answer: ScriptedAnswer) -> None:
        answer.commit_tokens(3)
        answer.commit("ay")
        answer.end()

    async with asking(untold) as (client, _):
        with pytest.raises(openai.APIStatusError) as refused:
            await client.completions.create(**ASKED)
    assert (refused.value.status_code, refused.value.message) == snapshot(
        (
            503,
            "Error code: 503 - The server has not told how likely it finds some tokens of the answer. Ask again; if that does not help, the server is older than this device: have it updated.",
        )
    )


async def test_text_of_this_device_has_no_chances() -> None:
    async def alone(answer: ScriptedAnswer) -> None:
        answer.commit_tokens(3)
        answer.write("ay")
        answer.link(LinkState.OFFLINE)
        answer.end(Finish.END_OF_TEXT, provisional=True)

    settings = EndpointSettings(settle_seconds=0.01, unverified="end")
    async with asking(alone, settings) as (client, _):
        completion = await client.completions.create(**ASKED)
        stream = await client.completions.create(**ASKED, stream=True)
        choices = [choice async for chunk in stream for choice in chunk.choices]
    choice = completion.choices[0]
    assert choice.text == "".join(each.text for each in choices) == "day"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["d"]
    assert [each.logprobs.tokens for each in choices if each.logprobs is not None] == [["d"]]

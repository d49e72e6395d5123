"""The endpoint over a host with a real server: exact texts, links that are cut, clients that leave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import openai
import pytest
from moa_client.endpoint.ask import model_source
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import endpoint_routes
from moa_client.host.host import Host
from moa_client.web.access import Access
from moa_client.web.server import bind, make_app, serve
from moa_server.access import limits
from moa_server.access.limits import anonymous
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling
from structlog.testing import capture_logs

from tests.net.hosted import Hosted, hosting
from tests.net.server_peer import decode, plain_text, until
from tests.support.scripted_answers import openai_client

PROMPT = [5, 17, 42, 8, 17, 42]
SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=180)
ASKED: dict[str, Any] = {"model": "default", "prompt": PROMPT, "temperature": 0.7, "seed": 4, "max_tokens": 180}


@asynccontextmanager
async def endpoint_of(host: Host, settings: EndpointSettings | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's library, pointed to an endpoint over this host."""

    async def give() -> Host:
        return host

    listener, closing = bind("127.0.0.1", 0), asyncio.Event()
    access = Access("127.0.0.1", listener.getsockname()[1])
    app = make_app(endpoint_routes(model_source(give), settings or EndpointSettings(), closing), access)
    server = await serve(app, listener, closing, access)
    try:
        async with openai_client(server.url) as client:
            yield client
    finally:
        await server.close()


async def test_texts_are_the_servers_own_for_many_at_once(target: Target) -> None:
    async with hosting(target) as hosted, endpoint_of(hosted.host) as client:
        settings = [AnswerSettings(Sampling(0.7, seed=seed), max_tokens=12) for seed in range(32)]
        completions = await asyncio.gather(
            *(client.completions.create(**{**ASKED, "seed": seed, "max_tokens": 12}) for seed in range(32))
        )
        assert [each.choices[0].text for each in completions] == [
            decode(plain_text(target, PROMPT, each)[0]) for each in settings
        ]
        assert not hosted.host.conversations


async def test_the_server_stops_when_the_client_leaves(target: Target) -> None:
    async with hosting(target) as hosted, endpoint_of(hosted.host) as client:
        stream = await client.completions.create(stream=True, **ASKED)
        await anext(stream.__aiter__())
        await stream.close()
        await until(lambda: not hosted.answers and not hosted.host.conversations)


async def test_a_limit_is_429_before_an_answer_and_a_pause_in_one(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIECE_SECONDS", 0.5)
    per_minute, here = 1200, anonymous("ipv4:127.0.0.1:1")  # pieces of 10 tokens
    short = {**ASKED, "max_tokens": 60}
    async with (
        hosting(target, served={"tokens_per_minute": per_minute}) as hosted,
        endpoint_of(hosted.host) as client,
    ):
        meter = hosted.server.host.admission.rates.meter(here)
        assert meter is not None
        meter.read(per_minute - 30)
        with capture_logs() as logs:
            completion = await client.completions.create(**short)
        settings = AnswerSettings(SETTINGS.sampling, max_tokens=60)
        assert completion.choices[0].text == decode(plain_text(target, PROMPT, settings)[0])
        assert any(entry["event"] == "session resumed" for entry in logs)
        meter.read(2 * per_minute)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(**short)
        assert caught.value.code == "rate_limit_exceeded"
        assert 60 <= int(caught.value.response.headers["retry-after"]) <= 90


async def test_a_cut_delays_a_stream_and_changes_neither_text_nor_chances(target: Target) -> None:
    answer, _ = plain_text(target, PROMPT, SETTINGS)
    rows = log_softmax(target.forward(target.new_cache(), [*PROMPT, *answer[:-1]]).logits)[len(PROMPT) - 1 :]
    async with hosting(target, far=True, standalone="always") as hosted, endpoint_of(hosted.host) as client:
        assert hosted.link is not None
        text, told, is_cut, chunk = "", list[float](), False, None
        async for chunk in await client.completions.create(stream=True, logprobs=1, **ASKED):
            for choice in chunk.choices:
                text += choice.text
                if choice.logprobs is not None:
                    assert "".join(choice.logprobs.tokens) == choice.text
                    told += choice.logprobs.token_logprobs
            if told and not is_cut:
                is_cut = True
                await hosted.link.cut("both")
                await until(lambda: written(hosted) > 5)
                await hosted.link.heal()
    assert text == decode(answer)
    assert told == pytest.approx([float(row[token]) for row, token in zip(rows, answer, strict=True)], abs=1e-4)
    assert chunk is not None
    assert chunk.model_extra == {"moa": {"verified": True}}


def written(hosted: Hosted) -> int:
    """How many tokens the device has written that the server has not decided."""
    return sum(len(text.waiting) for each in hosted.host.conversations for text in each.publisher.answers)


TEXT = [number % 90 for number in range(150)]
SHORT = [5, 17, 42]


def mean_state(target: Target, tokens: list[int]) -> npt.NDArray[np.float64]:
    """Of length 1."""
    output = target.forward(target.new_cache(), tokens, None, (), target.layer_count)
    assert output.state is not None
    mean: npt.NDArray[np.float64] = target.normed(output.state).mean(axis=0, dtype=np.float64)
    return np.asarray(mean / np.linalg.norm(mean))


async def test_a_vector_is_the_mean_of_the_last_states_however_the_text_was_read(target: Target) -> None:
    async with hosting(target, served={"prefill_chunk": 64}) as hosted, endpoint_of(hosted.host) as client:
        made = await client.embeddings.create(model="default", input=[TEXT, SHORT])
        assert made.usage.prompt_tokens == len(TEXT) + len(SHORT)
        assert made.model_extra == {"moa": {"pooling": "mean", "trained_for_embeddings": False}}
        for each, tokens in zip(made.data, (TEXT, SHORT), strict=True):
            np.testing.assert_allclose(each.embedding, mean_state(target, tokens), atol=1e-6)
        services = hosted.server.host.services
        assert services.pool.promised == services.engine.pages.index.nbytes

"""The endpoint over a host with a real server: exact texts, links that are cut, clients that leave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
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
from moa_server.access.caller import anonymous
from moa_server.verifier import Target
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling
from structlog.testing import capture_logs

from tests.net.client_device import stepper
from tests.net.hosted import Drafters, Hosted, hosting, hosting_at, hosting_over_a_link
from tests.net.server_peer import decode, make_host, plain_text, serving, until
from tests.support.openai_client import openai_client

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


def plain(target: Target) -> str:
    """The target's own answer."""
    return decode(plain_text(target, PROMPT, SETTINGS)[0])


async def stream_of(client: openai.AsyncOpenAI, **more: Any) -> openai.AsyncStream[Any]:
    stream: openai.AsyncStream[Any] = await client.completions.create(stream=True, **{**ASKED, **more})
    return stream


async def test_texts_are_the_servers_own_for_many_at_once(target: Target) -> None:
    async with hosting(target, Drafters(target)) as host, endpoint_of(host) as client:
        settings = [AnswerSettings(Sampling(0.7, seed=seed), max_tokens=12) for seed in range(32)]
        completions = await asyncio.gather(
            *(client.completions.create(**{**ASKED, "seed": seed, "max_tokens": 12}) for seed in range(32))
        )
        assert [each.choices[0].text for each in completions] == [
            decode(plain_text(target, PROMPT, each)[0]) for each in settings
        ]
        assert not host.conversations


async def test_a_cut_delays_a_stream_and_changes_nothing(target: Target) -> None:
    async with (
        hosting_over_a_link(target, Drafters(target), standalone="always") as hosted,
        endpoint_of(hosted.host) as client,
    ):
        events = (await stream_of(client)).__aiter__()
        begun = await anext(events)
        await hosted.link.cut("both")
        await until(lambda: written(hosted) > 5)
        await hosted.link.heal()
        rest, moa = await rest_of(events)
        assert begun.choices[0].text + rest == plain(target)
        assert moa == {"verified": True}


def written(hosted: Hosted) -> int:
    """How many tokens the device has written that the server has not decided."""
    return sum(len(text.waiting) for each in hosted.host.conversations for text in each.publisher.answers)


async def rest_of(events: AsyncIterator[Any]) -> tuple[str, dict[str, Any]]:
    """The rest of a text, and what the last chunk says of it."""
    chunks = [chunk async for chunk in events]
    return "".join(choice.text for chunk in chunks for choice in chunk.choices), chunks[-1].moa


async def test_the_server_stops_when_the_client_leaves(target: Target) -> None:
    async with hosting_over_a_link(target, Drafters(target)) as hosted, endpoint_of(hosted.host) as client:
        stream = await stream_of(client)
        await anext(stream.__aiter__())
        assert answers_of(hosted)
        await stream.close()
        await until(lambda: not answers_of(hosted) and not hosted.host.conversations)


def answers_of(hosted: Hosted) -> int:
    """How many answers the server has under way."""
    return sum(not live.is_idle for live in hosted.server.host.services.registry.live_sessions)


async def test_a_limit_is_429_before_an_answer_and_a_pause_in_one(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIECE_SECONDS", 0.5)
    per_minute = 1200  # pieces of 10 tokens
    short = {**ASKED, "max_tokens": 60}
    limited, here = (
        make_host(target, stepper=stepper(target, 0), tokens_per_minute=per_minute),
        anonymous("ipv4:127.0.0.1:1"),
    )
    async with (
        serving(limited) as running,
        hosting_at(target, Drafters(target), f"127.0.0.1:{running.port}") as host,
        endpoint_of(host) as client,
    ):
        limited.admission.rates.take_tokens(here, per_minute - 30)
        with capture_logs() as logs:
            completion = await client.completions.create(**short)
        settings = AnswerSettings(SETTINGS.sampling, max_tokens=60)
        assert completion.choices[0].text == decode(plain_text(target, PROMPT, settings)[0])
        assert any(entry["event"] == "session resumed" for entry in logs)
        limited.admission.rates.take_tokens(here, 2 * per_minute)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.completions.create(**short)
        assert caught.value.code == "rate_limit_exceeded"
        assert 60 <= int(caught.value.response.headers["retry-after"]) <= 90
        await until(lambda: not host.conversations)


def own_chances(target: Target, tokens: Sequence[int]) -> list[float]:
    """The target's, of all tokens of a text but the first."""
    rows = log_softmax(target.forward(target.new_cache(), tokens[:-1]).logits)
    return [float(row[token]) for row, token in zip(rows, tokens[1:], strict=True)]


async def test_chances_are_the_targets_own_with_drafts_and_through_a_cut(target: Target) -> None:
    answer, _ = plain_text(target, PROMPT, SETTINGS)
    expected = own_chances(target, [*PROMPT, *answer])[len(PROMPT) - 1 :]
    async with (
        hosting_over_a_link(target, Drafters(target), standalone="always") as hosted,
        endpoint_of(hosted.host) as client,
    ):
        stream = await stream_of(client, logprobs=1)
        text, told, is_cut = "", list[float](), False
        async for chunk in stream:
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
    assert text == plain(target)
    assert told == pytest.approx(expected, abs=1e-4)


TEXT = [number % 90 for number in range(150)]
SHORT = [5, 17, 42]


def mean_state(target: Target, tokens: list[int]) -> npt.NDArray[np.float64]:
    """Of length 1."""
    output = target.forward(target.new_cache(), tokens, None, (), target.layer_count)
    assert output.state is not None
    mean: npt.NDArray[np.float64] = target.normed(output.state).mean(axis=0, dtype=np.float64)
    return np.asarray(mean / np.linalg.norm(mean))


async def test_a_vector_is_the_mean_of_the_last_states_however_the_text_was_read(target: Target) -> None:
    async with (
        serving(make_host(target, stepper=stepper(target, 0), prefill_chunk=64)) as running,
        hosting_at(target, Drafters(target), f"127.0.0.1:{running.port}") as host,
        endpoint_of(host) as client,
    ):
        made = await client.embeddings.create(model="default", input=[TEXT, SHORT])
        assert made.usage.prompt_tokens == len(TEXT) + len(SHORT)
        assert made.model_extra == {"moa": {"pooling": "mean", "trained_for_embeddings": False}}
        for each, tokens in zip(made.data, (TEXT, SHORT), strict=True):
            np.testing.assert_allclose(each.embedding, mean_state(target, tokens), atol=1e-6)
        services = running.host.services
        assert services.pool.promised == services.prefixes.nbytes


async def test_an_answer_goes_on_meanwhile_and_stays_what_it_is(target: Target) -> None:
    async with hosting_over_a_link(target, Drafters(target)) as hosted, endpoint_of(hosted.host) as client:
        stream = await stream_of(client)
        vectors = asyncio.gather(*(client.embeddings.create(model="default", input=TEXT) for _ in range(6)))
        assert (await rest_of(stream.__aiter__()))[0] == plain(target)
        assert len({tuple(made.data[0].embedding) for made in await vectors}) == 1
        assert not answers_of(hosted)

"""Texts as vectors: computed by a real server, asked for through the endpoint by OpenAI's library."""

from __future__ import annotations

import asyncio

import numpy as np
import numpy.typing as npt
import openai
import pytest
from moa_client.endpoint.endpoint import EndpointSettings
from moa_server.verifier import Target

from tests.net.client_device import stepper
from tests.net.hosted import Drafters, hosting, hosting_at, hosting_over_a_link
from tests.net.server_peer import CONTEXT, make_host, serving, until
from tests.net.test_endpoint import answers_of, endpoint_of, plain, rest_of, stream_of

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


async def test_a_lost_server_is_tried_again_and_then_said(target: Target) -> None:
    settings = EndpointSettings(settle_seconds=0.6)
    async with (
        hosting_over_a_link(target, Drafters(target)) as hosted,
        endpoint_of(hosted.host, settings) as client,
    ):
        await hosted.link.refuse()
        await hosted.link.reset()
        with pytest.raises(openai.InternalServerError) as lost:
            await client.embeddings.create(model="default", input=SHORT)
        assert lost.value.status_code == 503
        await hosted.link.heal()
        assert await client.embeddings.create(model="default", input=SHORT)


async def test_a_server_that_has_another_model_now_embeds_nothing(target: Target) -> None:
    async with hosting_over_a_link(target, Drafters(target)) as hosted, endpoint_of(hosted.host) as client:
        assert await client.embeddings.create(model="default", input=SHORT)
        hosted.server.host.services.served.identity.target_fingerprint = b"another"
        with pytest.raises(openai.InternalServerError, match="has another model now"):
            await client.embeddings.create(model="default", input=SHORT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1] * (CONTEXT + 1), f"The text has {CONTEXT + 1} tokens"),
        ([[5], [9999]], "input\\[1\\]: expected ids of tokens"),
        ([], "input: expected a text"),
        ([""], "input: expected a text"),
    ],
)
async def test_what_cannot_be_embedded_is_refused_by_its_name(target: Target, given: object, words: str) -> None:
    async with hosting(target, Drafters(target)) as host, endpoint_of(host) as client:
        with pytest.raises(openai.BadRequestError, match=words):
            await client.embeddings.create(model="default", input=given)


async def test_what_a_client_leaves_is_given_back(target: Target) -> None:
    async with hosting_over_a_link(target, Drafters(target)) as hosted, endpoint_of(hosted.host) as client:
        asking = asyncio.create_task(client.embeddings.create(model="default", input=[TEXT] * 20))
        services = hosted.server.host.services
        await until(lambda: services.pool.running > 0)
        asking.cancel()
        await until(lambda: services.pool.running == 0)

"""The endpoint over a host of conversations with a real server: exact texts, a link that is cut, a client that leaves."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import openai
import pytest
from moa_client.endpoint.ask import HostModels
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.routes import endpoint_routes
from moa_client.host.catalog import Catalog
from moa_client.host.host import Host, Reached, Started
from moa_client.link.fleet import connect
from moa_client.settings import ClientSettings
from moa_client.web.access import Access
from moa_client.web.server import bind, make_app, serve
from moa_server.app import RunningServer
from moa_server.verifier import Target
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.scores import log_softmax
from moa_shared.sampling.settings import Sampling

from netsim import LinkHandle, open_link
from tests.net.client_device import device, stepper
from tests.net.client_talk import server_at
from tests.net.server_peer import PROMPT, VOCAB, decode, make_host, plain_text, serving, until
from tests.support.answer_events import PlainTokenizer
from tests.support.scripted_answers import openai_client

SETTINGS = AnswerSettings(Sampling(0.7, seed=4), max_tokens=180)
ASKED: dict[str, Any] = {"model": "default", "prompt": PROMPT, "temperature": 0.7, "seed": 4, "max_tokens": 180}


class Characters(PlainTokenizer):
    """The same in the vocabulary of the tiny target."""

    special_tokens: Mapping[str, int] = {}

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        return [token % VOCAB for token in super().encode(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        return decode(tokens)

    shown = decode

    def token_bytes(self, token: int) -> bytes:
        return decode([token]).encode()


@dataclass(frozen=True, slots=True)
class Hosted:
    """OpenAI's library, pointed to an endpoint over a host. `link`: to its server; None: they are next to each other."""

    client: openai.AsyncOpenAI
    host: Host
    server: RunningServer
    link: LinkHandle | None


@asynccontextmanager
async def hosting(
    target: Target, *, far: bool = False, served: Mapping[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Hosted]:
    """`far`: over a link that can be cut; `served`: settings of the server, `settings`: of the client."""
    held = device(target, "chain")
    files = cast("Any", SimpleNamespace(config={"vocab_size": VOCAB}, target_id="tiny"))
    held = replace(held, target=replace(held.target, files=files, tokenizer=cast("Any", Characters())))
    async with AsyncExitStack() as stack:
        made = make_host(target, stepper=stepper(target, 0), **(served or {}))
        running = await stack.enter_async_context(serving(made))
        address = f"127.0.0.1:{running.port}"
        between = await stack.enter_async_context(open_link("perfect", upstream=address)) if far else None
        address = between.target if between is not None else address
        link = await stack.enter_async_context(connect([server_at(address)]))
        started = Started(held, Reached(await link.describe(), 1.0))
        host = Host(ClientSettings(server=address, **settings), link, started)
        stack.push_async_callback(host.close)

        async def give() -> HostModels:
            return HostModels(Catalog(host))

        listener, closing = bind("127.0.0.1", 0), asyncio.Event()
        access = Access("127.0.0.1", listener.getsockname()[1])
        app = make_app(endpoint_routes(give, EndpointSettings(), closing), access)
        server = await serve(app, listener, closing, access)
        stack.push_async_callback(server.close)
        client = await stack.enter_async_context(openai_client(server.url))
        yield Hosted(client, host, running, between)


async def test_texts_are_the_servers_own_for_many_at_once(target: Target) -> None:
    async with hosting(target) as hosted:
        settings = [AnswerSettings(Sampling(0.7, seed=seed), max_tokens=12) for seed in range(32)]
        asked = [{**ASKED, "seed": seed, "max_tokens": 12} for seed in range(32)]
        completions = await asyncio.gather(*(hosted.client.completions.create(**each) for each in asked))
        texts = [decode(plain_text(target, PROMPT, each)[0]) for each in settings]
        assert [each.choices[0].text for each in completions] == texts
        assert not hosted.host.conversations


async def test_the_server_stops_when_the_client_leaves(target: Target) -> None:
    async with hosting(target) as hosted:
        stream = await hosted.client.completions.create(stream=True, **ASKED)
        await anext(stream.__aiter__())
        await stream.close()
        sessions = hosted.server.host.services.registry
        await until(lambda: all(live.is_idle for live in sessions.live_sessions) and not hosted.host.conversations)


async def test_a_cut_delays_a_stream_and_changes_neither_text_nor_chances(target: Target) -> None:
    answer, _ = plain_text(target, PROMPT, SETTINGS)
    rows = log_softmax(target.forward(target.new_cache(), [*PROMPT, *answer[:-1]]).logits)[len(PROMPT) - 1 :]
    async with hosting(target, far=True, served={"run_ahead_tokens": 8}, standalone="always") as hosted:
        assert hosted.link is not None
        text, told, is_cut, chunk = "", list[float](), False, None
        async for chunk in await hosted.client.completions.create(stream=True, logprobs=1, **ASKED):
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
    mean: npt.NDArray[np.float64] = target.normed(output.states[target.layer_count]).mean(axis=0, dtype=np.float64)
    return np.asarray(mean / np.linalg.norm(mean))


async def test_a_vector_is_the_mean_of_the_last_states_however_the_text_was_read(target: Target) -> None:
    async with hosting(target, served={"prefill_chunk": 64}) as hosted:
        made = await hosted.client.embeddings.create(model="default", input=[TEXT, SHORT])
        assert made.usage.prompt_tokens == len(TEXT) + len(SHORT)
        assert made.model_extra == {"moa": {"pooling": "mean", "trained_for_embeddings": False}}
        for each, tokens in zip(made.data, (TEXT, SHORT), strict=True):
            np.testing.assert_allclose(each.embedding, mean_state(target, tokens), atol=1e-6)
        services = hosted.server.host.services
        assert services.pool.promised == services.engine.pages.index.nbytes

"""Published drafters from their folders to an answer: a real server and client, and the text of plain streaming."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import numpy as np
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Committed, Event, LinkState, Provisional
from moa_client.device.fetching import fetch_manifest
from moa_client.device.loading import load_device
from moa_client.device.sources import find_sources
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint.checkpoint import load_checkpoint
from moa_shared.drafter.kinds.dflash import BlockState
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Plane
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

from netsim import LinkHandle, open_link
from tests.net.client_talk import Screen, watch
from tests.net.server_peer import serving
from tests.net.test_client_engine import ask
from tests.support.published_drafters import (
    publish_dflash,
    publish_eagle,
    publish_eagle3,
    publish_moa,
    publish_speculator,
    save_llama3,
)
from tests.support.tiny_models import save_tokenizer

pytestmark = pytest.mark.torch

Drafting = Literal["device", "server"]
DRAFTING: tuple[Drafting, ...] = ("device", "server")
PROMPT = [5, 17, 42, 8, 17, 42]


async def streamed(address: str, settings: AnswerSettings) -> list[int]:
    """What the server writes without a client's drafts."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = moa_pb2_grpc.MoaStub(channel)
        request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(settings))
        return [token async for part in stub.Generate(request) for token in part.tokens]


@pytest.mark.parametrize("drafting", DRAFTING)
@pytest.mark.parametrize("named", [True, False], ids=["named at both ends", "sent by the server"])
@pytest.mark.parametrize("make", [publish_eagle, publish_moa, publish_eagle3, publish_speculator, publish_dflash])
async def test_the_text_is_that_of_plain_streaming(
    tmp_path: Path, make: Callable[[Path], Path], named: bool, drafting: Drafting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    model, drafter = str(save_llama3(tmp_path / "tiny-llama3")), str(make(tmp_path / "published-drafter"))
    settings = ServerSettings(model=model, drafter=drafter, execution="int8", threads=1, drafting=drafting, port=0)
    host = load_host(settings, SilentProgress())
    async with serving(host) as running, connect([server := Server(f"127.0.0.1:{running.port}", 10.0, 60.0)]) as link:
        address = f"127.0.0.1:{running.port}"
        served = await link.describe()
        assert [each.name for each in served.drafters] == ["published-drafter"]
        named_files: dict[str, Any] = {"model": model, "drafter": drafter} if named else {}
        client = ClientSettings(server=address, cache_dir=tmp_path / "device-cache", **named_files)
        sources = await find_sources(client, link, served, SilentProgress())
        device = load_device(client, served, SilentProgress(), sources)
        assert device.identity.drafter_fingerprint == served.identity.drafter_fingerprint
        if not named:
            [fetched] = [load_checkpoint(path) for path in sources.drafters.values()]
            assert not any(name.startswith("fc.") for name in fetched.tensors)  # which the server runs
            offered = {entry.kind for entry in (await fetch_manifest(server))[0].files}
            assert (pb.PART_HEAD_BF16 in offered) != fetched.config.traits.has_own_head
        # Waiting for drafts: a step of the tiny target takes a tenth of a millisecond, and they would all come late.
        waits = drafting == "device"
        how = DraftingSettings(drafting=drafting, rounds=4 if waits else 0)
        engine = ClientEngine(link, device, 97, Codec.INT4, how)
        try:
            for temperature in (0.0, 0.7):
                asked = AnswerSettings(Sampling(temperature, seed=3), max_tokens=32)
                engine.rewind(0)
                assert await ask(engine, PROMPT, asked) == await streamed(address, asked)
                figures = engine.figures
                assert not waits or figures.drafted + figures.accepted + figures.stale > 0
        finally:
            await engine.close()


async def test_the_authors_drafter_through_a_cut(
    tmp_path: Path, shared_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that are right, text of the device's own while there is no server, and the target's in the end."""
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    folder, model = shared_dir / "parity" / "eagle3", tmp_path / "target"
    shutil.copytree(folder / "a_target", model, copy_function=shutil.copyfile)
    model.chmod(0o755)
    save_tokenizer(model, [f"w{index}" for index in range(256)])
    infer = np.load(folder / "a_infer.npz")
    prompt, text = infer["prompt_ids"].tolist(), infer["vanilla_ids"][24:].tolist()
    drafter = str(folder / "a_eagle3")
    settings = ServerSettings(
        model=str(model), drafter=drafter, execution="float32", threads=1, port=0, allow_ignore_end_of_text=True
    )
    async with serving(load_host(settings, SilentProgress())) as running:
        address = f"127.0.0.1:{running.port}"
        async with connect([Server(address, 10.0, 60.0)]) as link:
            served = await link.describe()
            client = ClientSettings(server=address, model=str(model), drafter="auto")
            sources = await find_sources(client, link, served, SilentProgress())
            device = load_device(client, served, SilentProgress(), sources)
            how = DraftingSettings(drafting="device", rounds=5)
            engine = ClientEngine(link, device, 256, Codec.BF16, how)
            screen = Screen()

            async def cut_and_heal(_: Event) -> None:
                if LinkState.OFFLINE not in screen.states and len(screen.committed) > 12:
                    engine.go_offline()
                elif len(screen.provisional) >= 8 and screen.states[-1] is LinkState.OFFLINE:
                    engine.go_online()

            try:
                asked = AnswerSettings(Sampling(), max_tokens=len(text), ignore_end_of_text=True)
                await watch(engine, screen, prompt, asked, cut_and_heal)
                assert screen.committed == text
                assert screen.most_provisional >= 8
                assert engine.figures.accepted > 3
            finally:
                await engine.close()


GREEDY = AnswerSettings(max_tokens=40, ignore_end_of_text=True)
PATIENT = StandaloneRule(end_ms=60_000.0, mode="always")


@dataclass(frozen=True)
class Published:
    """A target, its drafter, and what the authors' code writes after a prompt."""

    target: str
    drafter: str
    prompt: list[int]
    answer: list[int]


@pytest.fixture
def published(shared_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    folder, target = shared_dir / "parity" / "dflash", tmp_path / "target"
    shutil.copytree(folder / "a_target", target, copy_function=shutil.copyfile)
    target.chmod(0o755)
    save_tokenizer(target)
    text = np.load(folder / "a_infer.npz")["vanilla_ids"].tolist()
    return Published(str(target), str(folder / "a_dflash"), text[:24], text[24:])


@asynccontextmanager
async def talking(
    published: Published, how: DraftingSettings, drafting: Literal["device", "server"]
) -> AsyncIterator[tuple[LinkHandle, ClientEngine]]:
    """The device has the drafter from the server."""
    settings = ServerSettings(
        model=published.target,
        drafter=published.drafter,
        execution="float32",
        threads=1,
        drafting=drafting,
        port=0,
        allow_ignore_end_of_text=True,
        choose_nodes=False,  # what is verified must not depend on how fast this machine is now
    )
    host = load_host(settings, SilentProgress())
    async with (
        serving(host) as running,
        open_link("perfect", upstream=f"127.0.0.1:{running.port}") as link,
        connect([Server(link.target, 10.0, 60.0)]) as server,
    ):
        served = await server.describe()
        client = ClientSettings(server=link.target, model=published.target, mode="chain")
        sources = await find_sources(client, server, served, SilentProgress())
        [fetched] = sources.drafters.values()
        assert not {"fc.weight", "hidden_norm.weight"} & set(
            load_checkpoint(fetched).tensors
        )  # these stay at the server
        device = load_device(client, served, SilentProgress(), sources)
        assert device.drafting is not None
        assert device.drafting.new_drafter().most_depth == 7
        assert device.drafting.planes == {Plane.MEMORY: 64}
        engine = ClientEngine(server, device, 256, Codec.BF16, how)
        try:
            yield link, engine
        finally:
            await engine.close()


async def test_the_devices_blocks(published: Published) -> None:
    """In rounds the first block is verified as theirs was: three of its tokens are right."""
    async with talking(published, DraftingSettings(rounds=7), "device") as (_, engine):
        assert await ask(engine, published.prompt, GREEDY) == published.answer
        assert engine.figures.accepted >= 3
        assert engine.figures.drafted >= 7


async def test_the_servers_blocks(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = BlockState.begin

    def counted(state: BlockState) -> np.ndarray:
        begun.append((len(state.tokens), state.memory_rows))
        return begin(state)

    monkeypatch.setattr(BlockState, "begin", counted)
    async with talking(published, DraftingSettings(drafting="server"), "server") as (_, engine):
        assert await ask(engine, published.prompt, GREEDY) == published.answer
        assert engine.figures.server_accepted >= 3
    assert begun
    assert all(rows == tokens - 1 for tokens, rows in begun)  # it reads each row of the text, the prompt's too


async def test_a_cut_in_the_middle_of_a_block(published: Published) -> None:
    """The device goes on with its block, and with further ones, until the server decides what it has written."""
    screen, cut_at = Screen(), 10

    async def on_event(event: Event) -> None:
        if isinstance(event, Committed) and not screen.cuts and len(screen.committed) >= cut_at:
            screen.cuts = 1
            await link.cut("both")
        elif isinstance(event, Provisional) and screen.cuts == 1 and len(screen.provisional) >= 16:
            screen.cuts = 2
            await link.heal()

    how = DraftingSettings(standalone=PATIENT, rounds=7)
    async with talking(published, how, "device") as (link, engine):
        await watch(engine, screen, published.prompt, GREEDY, on_event)
    assert screen.cuts == 2
    assert screen.most_provisional >= 16
    assert screen.committed == published.answer

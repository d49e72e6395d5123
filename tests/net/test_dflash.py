"""A published DFlash drafter from its files to an answer: server, device and a cut, and the text that its authors' code
has for the same prompt.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from moa_client.conversation.events import Committed, Event, Provisional
from moa_client.device.loading import load_device
from moa_client.device.sources import find_sources
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter import load_checkpoint
from moa_shared.drafter.kinds.dflash import BlockState
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from netsim import LinkHandle, open_link
from tests.net.client_talk import Screen, watch
from tests.net.server_peer import serving
from tests.net.test_client_engine import ask
from tests.support.tiny_models import save_tokenizer

pytestmark = pytest.mark.torch

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
        assert device.drafting.drafter is not None
        assert device.drafting.drafter.most_depth == 7
        assert (device.drafting.memory_width, device.drafting.state_width) == (64, 0)
        engine = ClientEngine(server, device, 256, Codec.BF16, how)
        try:
            yield link, engine
        finally:
            await engine.close()


async def test_the_devices_blocks(published: Published) -> None:
    """In rounds the first block is verified as theirs was: three of its tokens are right."""
    async with talking(published, DraftingSettings(rounds=True, run_ahead=False), "device") as (_, engine):
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

    how = DraftingSettings(standalone=PATIENT, run_ahead=False)
    async with talking(published, how, "device") as (link, engine):
        await watch(engine, screen, published.prompt, GREEDY, on_event)
    assert screen.cuts == 2
    assert screen.most_provisional >= 16
    assert screen.committed == published.answer

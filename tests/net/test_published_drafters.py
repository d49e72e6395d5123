"""Published drafters from their folders to an answer: a real server and client, and the text of plain streaming."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.device.fetching import fetch_manifest
from moa_client.device.loading import load_device
from moa_client.device.sources import find_sources
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_server.loading import load_host
from moa_server.settings import ServerSettings
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

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

pytestmark = pytest.mark.torch

Drafting = Literal["device", "server"]
DRAFTING: tuple[Drafting, ...] = ("device", "server")
PROMPT = [5, 17, 42, 8, 17, 42]


async def streamed(address: str, settings: AnswerSettings) -> list[int]:
    """What the server writes without a client's drafts."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(settings))
        return [token async for part in moa_pb2_grpc.MoaStub(channel).Generate(request) for token in part.tokens]


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
        client = ClientSettings(server=address, cache_dir=tmp_path / "device-cache", mode="chain", **named_files)
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
                figures = None
                while figures is None or (waits and not figures.drafted + figures.accepted + figures.stale):
                    engine.rewind(0)  # on a busy machine all memory of an answer may come too late for drafts
                    assert await ask(engine, PROMPT, asked) == await streamed(address, asked)
                    figures = engine.figures
        finally:
            await engine.close()

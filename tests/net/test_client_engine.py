"""Whole conversations of the real client with a real server: the text is the target's own, whatever drafts."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.device.fetching import fetch_manifest
from moa_client.device.loading import Device, Drafting, load_device
from moa_client.device.sources import find_sources
from moa_client.drafting.drafters import MoaDrafter
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.settings import ClientSettings
from moa_server.engine.stepper import Stepper
from moa_server.loading import load_host, memory_source
from moa_server.service.host import Host
from moa_server.settings import ServerSettings
from moa_server.verifier import Target
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors, load_checkpoint
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.drafting.growing import GrowthShape
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Plane
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

from tests.net.client_device import DRAFTERS, checkpoint, device, stepper, without_drafter
from tests.net.client_talk import Screen, server_at, talking_to, watch
from tests.net.server_peer import CONTEXT, MODEL, PROMPT, make_host, plain_text, serving
from tests.support.tiny_models import HYBRID, SIZES, ModelWeights, assistant_options, tiny_kernel_target, tiny_model

ROUNDS, STREAMED = DraftingSettings(rounds=4), DraftingSettings(tree=True)


@asynccontextmanager
async def asking(
    host: Host, held: Device, settings: DraftingSettings = ROUNDS, codec: Codec = Codec.INT4
) -> AsyncIterator[ClientEngine]:
    async with serving(host) as running, talking_to([server_at(running.port)], held, settings, codec) as (_, engine):
        yield engine


def host_for(target: Target, name: str) -> Host:
    """A server of one of DRAFTERS."""
    return make_host(target, stepper=stepper(target, int(name.endswith("N = 1"))))


async def ask(engine: ClientEngine, turn: list[int], settings: AnswerSettings) -> list[int]:
    """The text of an answer."""
    screen = Screen()
    await watch(engine, screen, turn, settings)
    return screen.text


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("mode", [ROUNDS, STREAMED], ids=["rounds", "streamed"])
async def test_the_text_is_the_targets_own(
    target: Target, name: str, temperature: float, mode: DraftingSettings
) -> None:
    async with asking(host_for(target, name), device(target, name), mode) as engine:
        for seed in range(3 if temperature else 1):
            settings = AnswerSettings(Sampling(temperature, seed=seed), max_tokens=40)
            expected, _ = plain_text(target, PROMPT, settings)
            engine.rewind(0)
            assert await ask(engine, PROMPT, settings) == expected
            assert list(engine.conversation.answer) == expected


@pytest.mark.parametrize("name", ["lookup", "chain", "tree"])
async def test_drafts_are_right(target: Target, name: str) -> None:
    """Sooner or later: on a busy machine the rows that they need may come after an answer."""
    async with asking(host_for(target, name), device(target, name)) as engine:
        while not engine.figures.accepted:
            engine.rewind(0)
            await ask(engine, PROMPT, AnswerSettings(max_tokens=40))


@pytest.mark.parametrize("codec", Codec)
async def test_every_codec_gives_the_same_text(target: Target, codec: Codec) -> None:
    settings, name = AnswerSettings(Sampling(0.7, seed=2), max_tokens=30), "tree of N = 1"
    async with asking(host_for(target, name), device(target, name), ROUNDS, codec) as engine:
        assert await ask(engine, PROMPT, settings) == plain_text(target, PROMPT, settings)[0]


# ---------------------------------------------------------------- drafters of all kinds

KINDS: dict[str, dict[str, Any]] = {
    "eagle2": {"kind": "eagle2", "own_layers": 2},
    "independent": {"kind": "independent", "own_layers": 2},
    "moa": {"lsa": False, "state_entries": (0, 2, 1), "reused_layers": 1},
    "eagle3": {
        "kind": "eagle3", "own_layers": 2, "state_entries": (0, 2, 1), "draft_vocab": 20, "feature_norm": "each",
        "normed_feedback": True,
    },
    "dflash": {
        "kind": "dflash", "own_layers": 2, "state_entries": (3, 1), "block_size": 4, "mask_token": 5,
        "head_norms": True,
    },
    "mtp": {"kind": "mtp", "own_layers": 2, "qkv_bias": True},
}  # fmt: skip
KINDS["assistant"] = assistant_options()
KINDS["dspark"] = {**KINDS["dflash"], "anchor_guesses": True, "markov_rank": 8}


RECURRENT = tiny_model(
    HYBRID, max_position_embeddings=CONTEXT, layer_types=[*["linear_attention"] * 2, "full_attention"]
)


HOWS = [(how, kind) for how in ("rounds", "streamed") for kind in KINDS]
HOWS += [("over recurrent states", kind) for kind in KINDS if kind != "assistant"]


@pytest.mark.parametrize(("how", "kind"), HOWS)
async def test_the_text_is_the_targets_own_whatever_the_drafters_kind(
    target: KernelTarget, kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, own = ArrayWeights(MODEL.tensors), KINDS[kind]
    if how == "over recurrent states":
        target, weights = tiny_kernel_target(RECURRENT, plain=True), ModelWeights(RECURRENT)
        monkeypatch.setattr(weights, "config", RECURRENT.config, raising=False)  # of layers like the target's
        own = {**own, "head_norms": True, "output_gate": True, "qkv_bias": False} if kind == "mtp" else own
    config = replace(checkpoint(0).config, **own)
    made = Checkpoint(config, fresh_tensors(config, seed=2), "64" * 32)
    source = memory_source(made, target)
    width, rows_seen = made.config.memory_width, set[int]()
    narrow, *_ = (*made.config.memory_widths, 0)
    widths = {width, narrow}

    class Watched(MoaDrafter):
        def remember(self, start: int, rows: npt.NDArray[np.float32], *, state: bool) -> None:
            rows_seen.add(rows.shape[1])
            super().remember(start, rows, state=state)

    drafter = Watched(
        made.states(weights, "float32"),
        reads_memory=width > 0,
        shape=GrowthShape(breadth=3, survival=0.0),
    )
    drafting = Drafting(lambda: drafter)
    if source and width:
        planes = {Plane.MEMORY: width}
        if kind == "assistant":  # for its states, and rows that no window sees
            planes[Plane.REUSED_STATE] = SIZES["hidden_size"]
            widths.add(SIZES["hidden_size"])
        drafting = Drafting(lambda: drafter, source.fingerprint, planes, narrow)
    host = make_host(target, stepper=Stepper(target, [source] if source else []))
    held, mode = replace(without_drafter(), drafting=drafting), DraftingSettings(rounds=4 if how == "rounds" else 0)
    async with asking(host, held, mode, Codec.BF16) as engine:
        for temperature in (0.0, 0.7):
            settings = AnswerSettings(Sampling(temperature, seed=3), max_tokens=40)
            engine.rewind(0)
            assert await ask(engine, PROMPT, settings) == plain_text(target, PROMPT, settings)[0]
    assert rows_seen <= widths


# ---------------------------------------------------------------- published drafters, from their folders to an answer


def publisher(name: str) -> Callable[[Path], Path]:
    """What writes a drafter as it is published."""
    from tests.support import published_drafters

    found: Callable[[Path], Path] = getattr(published_drafters, f"publish_{name}")
    return found


async def streamed(address: str, settings: AnswerSettings) -> list[int]:
    """What the server writes without a client's drafts."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = pb.GenerateRequest(tokens=PROMPT, sampling=settings_to_proto(settings))
        return [token async for part in moa_pb2_grpc.MoaStub(channel).Generate(request) for token in part.tokens]


@pytest.mark.torch
@pytest.mark.parametrize("drafting", ["device", "server"])
@pytest.mark.parametrize("named", [True, False], ids=["named at both ends", "sent by the server"])
@pytest.mark.parametrize("drafter", ["eagle", "moa", "eagle3", "speculator", "dflash", "mtp", "assistant"])
async def test_the_text_is_that_of_plain_streaming(
    tmp_path: Path, drafter: str, named: bool, drafting: Literal["device", "server"], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.published_drafters import save_gemma4, save_llama3

    save = save_gemma4 if drafter == "assistant" else save_llama3
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    files: dict[str, Any] = {
        "model": str(save(tmp_path / "tiny-model")),
        "drafter": str(publisher(drafter)(tmp_path / "published-drafter")),
    }
    host = load_host(ServerSettings(**files, execution="int8", threads=1, drafting=drafting, port=0), Progress())
    async with serving(host) as running, connect([server := server_at(running.port)]) as link:
        served = await link.describe()
        assert [each.name for each in served.drafters] == [Path(files["drafter"]).name]
        own_files = files if named else {}
        client = ClientSettings(server=server.address, cache_dir=tmp_path / "device", mode="chain", **own_files)
        sources = await find_sources(client, link, served, Progress())
        held = load_device(client, served, Progress(), sources)
        assert held.identity.drafter_fingerprint == served.identity.drafter_fingerprint
        if not named:
            [fetched] = [load_checkpoint(path) for path in sources.drafters.values()]
            assert not any(name.startswith("fc.") for name in fetched.tensors)  # which the server runs
            offered = {entry.kind for entry in (await fetch_manifest(server))[0].files}
            assert (pb.PART_HEAD_BF16 in offered) != fetched.config.traits.has_own_head
        how = DraftingSettings(drafting=drafting, rounds=4 if drafting == "device" else 0)
        engine = ClientEngine(link, held, 96 if drafter == "assistant" else 97, Codec.INT4, how)
        for temperature in (0.0, 0.7):
            asked = AnswerSettings(Sampling(temperature, seed=3), max_tokens=32)
            engine.rewind(0)
            assert await ask(engine, PROMPT, asked) == await streamed(server.address, asked)
        await engine.close()

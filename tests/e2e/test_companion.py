"""The default model as companion: of itself, whose every word it says, and of a larger one of the same vocabulary."""

from __future__ import annotations

from pathlib import Path

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_bench.harness.child import running_server
from moa_client.conversation.events import Committed, Corrected, Ended, Provisional
from moa_client.device.drafter_catalog import COMPANION, NOBODY
from moa_client.device.loading import load_device
from moa_client.drafting.companion import CompanionDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

from tests.support.random_gguf import Shape, write_random_gguf

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target")]
QUESTION = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
WRITING = DraftingSettings(standalone=StandaloneRule("auto", end_ms=60_000.0))  # no answer ends without the server
TOKENS = 60
LARGER = Shape(1024, 12, 4096, 16, 8)  # 240M, the companion has 135M


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, seed=3, top_p=0.95)], ids=["greedy", "sampled"])
async def test_the_target_s_own_model_is_never_corrected(
    exact_server: str, default_model_files: ModelFiles, sampling: Sampling
) -> None:
    settings = ClientSettings(server=exact_server, drafter="none", companion="default")
    asked = AnswerSettings(sampling, max_tokens=TOKENS)
    prompt = load_tokenizer(default_model_files).encode(QUESTION)
    expected = await plain(exact_server, prompt, asked)
    shown: list[int] = []
    alone, wanted = 0, 30
    async with connect([Server(exact_server, 10.0, 60.0)]) as link:
        device = load_device(settings, await link.describe(), SilentProgress())
        assert isinstance(device.drafting.drafter, CompanionDrafter)
        assert device.drafting.choice is not None
        assert device.drafting.choice.name in (COMPANION, NOBODY)  # on a busy machine it is too slow to draft
        engine = ClientEngine(link, device, int(device.files.config["vocab_size"]), Codec.INT4, WRITING)
        async for event in engine.ask(prompt, asked):
            assert not isinstance(event, Corrected)
            if isinstance(event, Committed):
                shown += event.tokens
                if len(shown) >= 4 and not alone:
                    wanted = min(wanted, TOKENS - len(shown) - 4)  # on a busy machine less may be left
                    engine.go_offline()
            elif isinstance(event, Provisional):
                alone += len(event.tokens)
                if alone == wanted:
                    engine.go_online()
            elif isinstance(event, Ended):
                assert not event.provisional
        await engine.close()
    assert shown == expected
    assert alone >= wanted


@pytest.mark.long
async def test_beside_a_larger_target_the_text_is_the_target_s(default_model_files: ModelFiles, tmp_path: Path) -> None:
    target = write_random_gguf(tmp_path / "random.gguf", LARGER, default_model_files.weights[0])
    with running_server(str(target), drafter="none") as server:
        settings = ClientSettings(server=server.address, model=str(target), drafter="none", companion="default")
        asked = AnswerSettings(Sampling(0.7, seed=3), max_tokens=24, ignore_end_of_text=True)
        prompt = load_tokenizer(default_model_files).encode(QUESTION)
        async with connect([Server(server.address, 10.0, 60.0)]) as link:
            device = load_device(settings, await link.describe(), SilentProgress())
            assert device.files.fingerprint != default_model_files.fingerprint
            vocab_size = int(device.files.config["vocab_size"])
            engine = ClientEngine(link, device, vocab_size, Codec.INT4, WRITING, offline=True)
            shown: list[int] = []
            alone: list[int] = []
            async for event in engine.ask(prompt, asked):
                if isinstance(event, Committed):
                    shown += event.tokens
                elif isinstance(event, Provisional):
                    alone += event.tokens
                    if len(alone) == 12:
                        engine.go_online()
            await engine.close()
        assert shown == await plain(server.address, prompt, asked)
        assert len(alone) >= 12


async def plain(address: str, prompt: list[int], asked: AnswerSettings) -> list[int]:
    """What the server alone writes."""
    async with grpc.aio.insecure_channel(address) as channel:
        sampling = settings_to_proto(asked)
        call = moa_pb2_grpc.MoaStub(channel).Generate(pb.GenerateRequest(tokens=prompt, sampling=sampling))
        return [token async for part in call for token in part.tokens]

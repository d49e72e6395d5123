"""The default model as its own companion, which says its every word."""

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Committed, Corrected, Ended, Provisional
from moa_client.device.drafter_catalog import COMPANION
from moa_client.device.loading import load_device
from moa_client.drafting.drafters import CompanionDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target")]
QUESTION = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
WRITING = DraftingSettings(standalone=StandaloneRule("auto", end_ms=600_000.0))  # no answer ends without the server
TOKENS = 60


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
        device = load_device(settings, await link.describe(), Progress())
        assert device.drafting is not None
        assert isinstance(device.drafting.new_drafter(), CompanionDrafter)
        assert device.choice is not None
        assert device.choice.name == COMPANION
        engine = ClientEngine(link, device, int(device.target.files.config["vocab_size"]), Codec.INT4, WRITING)
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


async def plain(address: str, prompt: list[int], asked: AnswerSettings) -> list[int]:
    """What the server alone writes."""
    async with grpc.aio.insecure_channel(address) as channel:
        sampling = settings_to_proto(asked)
        call = moa_pb2_grpc.MoaStub(channel).Generate(pb.GenerateRequest(tokens=prompt, sampling=sampling))
        return [token async for part in call for token in part.tokens]

"""The default model as companion: of itself, whose every word it says, and of a larger one of the same vocabulary."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gguf
import grpc.aio
import numpy as np
import numpy.typing as npt
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_bench.harness.child import running_server
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
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target")]
QUESTION = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n"
WRITING = DraftingSettings(standalone=StandaloneRule("auto", end_ms=60_000.0))  # no answer ends without the server
TOKENS = 60


KIND = gguf.GGMLQuantizationType.Q4_1
DEVIATION = 0.02  # of weights, as models are initialised
_STEPS = 15  # of a block, between its least and its greatest weight
_STEP = np.float16(DEVIATION * 12**0.5 / _STEPS)  # weights that are evenly spread


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model, whose heads are 64 wide."""

    width: int
    layers: int
    mlp: int
    heads: int
    kv_heads: int


LARGER = Shape(1024, 12, 4096, 16, 8)  # 240M, the companion has 135M


def write_random_gguf(path: Path, shape: Shape, vocabulary_of: Path) -> Path:
    """Writes the file. `vocabulary_of`: a GGUF with the tokenizer and chat template."""
    random = np.random.default_rng(0)
    source, writer = gguf.GGUFReader(vocabulary_of), gguf.GGUFWriter(path, "llama")
    kv_width, head = 64 * shape.kv_heads, shape.width // shape.heads
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            add = writer.add_array if is_array else partial(writer.add_key_value, vtype=field.types[0])
            add(name, field.contents())
    vocab_size = len(source.fields["tokenizer.ggml.tokens"].data)
    writer.add_name("random")
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.mlp)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head)
    writer.add_vocab_size(vocab_size)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(shape.width, np.float32))

    def matrix(name: str, rows: int, columns: int) -> None:
        writer.add_tensor(name, _blocks(random, rows, columns), raw_dtype=KIND)

    matrix("token_embd.weight", vocab_size, shape.width)
    norm("output_norm.weight")
    for layer in range(shape.layers):
        block = f"blk.{layer}."
        norm(block + "attn_norm.weight")
        norm(block + "ffn_norm.weight")
        matrix(block + "attn_q.weight", shape.width, shape.width)
        matrix(block + "attn_k.weight", kv_width, shape.width)
        matrix(block + "attn_v.weight", kv_width, shape.width)
        matrix(block + "attn_output.weight", shape.width, shape.width)
        matrix(block + "ffn_gate.weight", shape.mlp, shape.width)
        matrix(block + "ffn_up.weight", shape.mlp, shape.width)
        matrix(block + "ffn_down.weight", shape.width, shape.mlp)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _blocks(random: np.random.Generator, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """A matrix of Q4_1: in each block a step, the least weight, and 32 weights of four bits."""
    per_block, size = gguf.GGML_QUANT_SIZES[KIND]
    raw = random.integers(0, 256, (rows * columns // per_block, size), np.uint8)
    raw[:, :4] = np.array([_STEP, -_STEP * _STEPS / 2], np.float16).view(np.uint8)
    return raw.reshape(rows, columns // per_block * size)


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


@pytest.mark.long
async def test_beside_a_larger_target_the_text_is_the_target_s(default_model_files: ModelFiles, tmp_path: Path) -> None:
    target = write_random_gguf(tmp_path / "random.gguf", LARGER, default_model_files.weights[0])
    with running_server(str(target), drafter="none") as server:
        settings = ClientSettings(server=server.address, model=str(target), drafter="none", companion="default")
        asked = AnswerSettings(Sampling(0.7, seed=3), max_tokens=24, ignore_end_of_text=True)
        prompt = load_tokenizer(default_model_files).encode(QUESTION)
        async with connect([Server(server.address, 10.0, 60.0)]) as link:
            device = load_device(settings, await link.describe(), SilentProgress())
            assert device.target.files.fingerprint != default_model_files.fingerprint
            vocab_size = int(device.target.files.config["vocab_size"])
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

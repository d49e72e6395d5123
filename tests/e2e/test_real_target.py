"""On the real target the split system's text is the target's own, whatever the drafter and the shape of its drafts.

In float32 the greedy text is what transformers generates; on the default level, greedy or sampled, it is what the same
server alone writes.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.device.loading import Device, load_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto
from moa_shared.sampling.settings import Sampling

pytestmark = [pytest.mark.timeout(900), pytest.mark.xdist_group("real target")]

PROMPTS = [
    "Explain gravity to a child.", "Write a haiku about the sea.", "What is 17 times 23?", "Name three prime numbers.",
    "Translate 'good morning' into French.", "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet?", "List four fruits.", "What does HTTP stand for?",
    "Summarise: the cat sat on the mat.",
    "Give me a recipe for pancakes.", "Why is the sky blue?", "Say hello in five languages.", "What is a mutex?",
    "Tell me a joke.", "How many days are in a leap year?", "Write an email asking for a day off.",
    "What is the capital of Australia?", "Count from one to ten.", "Define entropy in one sentence.",
]  # fmt: skip
DRAFTS = {
    "none": {"drafter": "none"},
    "shipped chain": {"drafter": "default", "mode": "chain", "length": 5},
    "shipped chain, streamed": {"drafter": "default", "mode": "chain", "length": 5},
    "shipped tree": {"drafter": "default", "mode": "tree"},
    "look-up": {"drafter": "lookup"},
}
GREEDY_TOKENS = 20
EXACT_TOKENS = 20
DEVICES: dict[tuple[str, str], Device] = {}  # by server and drafts
ALONE: dict[tuple[str, AnswerSettings], list[int]] = {}  # what the exact server writes


@asynccontextmanager
async def talking(address: str, name: str) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(server=address, **DRAFTS[name])  # type: ignore[arg-type]
    async with connect([Server(address, 10.0, 60.0)]) as link:
        served = await link.describe()
        if (address, name) not in DEVICES:
            DEVICES[address, name] = load_device(settings, served, Progress())
        device = DEVICES[address, name]
        vocab_size = int(device.target.files.config["vocab_size"])
        engine = ClientEngine(
            link,
            device,
            vocab_size,
            Codec.INT4,
            DraftingSettings(
                drafting="device" if "chain" in name else "auto",
                rounds=name in ("random chain", "random tree", "shipped chain"),
                tree=name.endswith("tree"),
            ),
        )
        try:
            yield engine
        finally:
            await engine.close()


def prompt_tokens(tokenizer: Tokenizer, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=True))


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


@pytest.fixture(scope="module")
def greedy(default_model_files: ModelFiles) -> Callable[[list[int], list[int]], list[int]]:
    """The tokens that transformers finds likeliest after a prompt and after each token of an answer but the last."""
    import torch
    from moa_shared.models import load_target_model

    torch.set_num_threads(1)
    model: Any = load_target_model(default_model_files, torch.float32)

    @torch.inference_mode()
    def likeliest(prompt: list[int], answer: list[int]) -> list[int]:
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        tokens: list[int] = logits.argmax(-1).tolist()
        return tokens

    return likeliest


async def answer(engine: ClientEngine, tokens: list[int], settings: AnswerSettings) -> list[int]:
    """The text when the server has decided all of it: on a busy machine a part may have been written without it."""
    engine.rewind(0)
    async for _ in engine.ask(tokens, settings):
        pass
    async for _ in engine.attend(lambda: not engine.answers.unsettled):
        pass
    return list(engine.conversation.answer)


async def alone(address: str, tokens: list[int], settings: AnswerSettings) -> list[int]:
    """What the server writes without a client's drafts."""
    async with grpc.aio.insecure_channel(address) as channel:
        request = pb.GenerateRequest(tokens=tokens, sampling=settings_to_proto(settings))
        stub = moa_pb2_grpc.MoaStub(channel)
        return [token async for part in stub.Generate(request) for token in part.tokens]


def test_the_tokenizer_speaks_the_models_dialect(tokenizer: Tokenizer) -> None:
    assert (tokenizer.eos_token_id, tokenizer.decode([2])) == (2, "<|im_end|>")
    assert tokenizer.decode(prompt_tokens(tokenizer, "Hi")) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    # Digits are split off first: the double newline before a list's number stays one token.
    assert [tokenizer.decode([token]) for token in tokenizer.encode("\n\n12")] == ["\n\n", "1", "2"]


@pytest.mark.torch
@pytest.mark.long
async def test_greedy_text_is_what_transformers_generates(
    float32_server: str, tokenizer: Tokenizer, greedy: Callable[[list[int], list[int]], list[int]]
) -> None:
    settings = AnswerSettings(max_tokens=GREEDY_TOKENS)
    async with talking(float32_server, "shipped tree") as engine:
        assert engine.device.drafting is not None, "no drafter is shipped for the default target"
        for prompt in PROMPTS[::2]:
            tokens = prompt_tokens(tokenizer, prompt)
            written = await answer(engine, tokens, settings)
            assert written == greedy(tokens, written), prompt
            assert tokenizer.eos_token_id not in written[:-1], prompt
            assert len(written) == GREEDY_TOKENS or written[-1] == tokenizer.eos_token_id, prompt


async def test_the_default_level_is_the_exact_one(exact_server: str) -> None:
    async with grpc.aio.insecure_channel(exact_server) as channel:
        said = await moa_pb2_grpc.MoaStub(channel).Describe(pb.DescribeRequest())
    assert (said.execution.level, said.execution.exact) == ("int8", True)
    assert len(said.identity.execution) == 32
    assert [drafter.name for drafter in said.drafters] == ["default", "deep"]
    assert said.step_ms > 0


@pytest.mark.parametrize(("temperature", "prompts"), [(0.0, PROMPTS[::3]), (0.7, PROMPTS[1::6]), (1.0, PROMPTS[2::6])])
@pytest.mark.parametrize("name", DRAFTS)
async def test_text_is_what_the_same_server_writes_without_drafts(
    exact_server: str, tokenizer: Tokenizer, name: str, temperature: float, prompts: list[str]
) -> None:
    async with talking(exact_server, name) as engine:
        for seed, prompt in enumerate(prompts):
            tokens = prompt_tokens(tokenizer, prompt)
            settings = AnswerSettings(Sampling(temperature, seed=seed), max_tokens=EXACT_TOKENS)
            if (prompt, settings) not in ALONE:
                ALONE[prompt, settings] = await alone(exact_server, tokens, settings)
            assert await answer(engine, tokens, settings) == ALONE[prompt, settings], (prompt, seed)
        while name == "shipped chain" and not engine.figures.accepted:  # its memory may come after an answer
            await answer(engine, tokens, settings)


async def test_another_seed_is_another_text(exact_server: str, tokenizer: Tokenizer) -> None:
    async with talking(exact_server, "none") as engine:
        texts = [
            tuple(
                await answer(engine, prompt_tokens(tokenizer, PROMPTS[1]), AnswerSettings(Sampling(1.0, seed=seed), 8))
            )
            for seed in (1, 2, 1)
        ]
    assert texts[0] == texts[2] != texts[1]

"""On the real target the split system's text is the target's own, whatever the drafter and the shape of its drafts, and costs
the link few bytes; as its own companion the model says its every word.

In float32 the greedy text is what transformers generates; on the default level, greedy or sampled, it is what the same
server alone writes.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from typing import Any

import pytest
from moa_bench.harness.questions import chat_tokens
from moa_bench.harness.split_client import PlainClient, SplitClient, load_split_device
from moa_client.conversation.events import Committed, Corrected, Ended, Provisional
from moa_client.device.drafter_catalog import COMPANION
from moa_client.device.loading import Device, load_device
from moa_client.drafting.drafters import CompanionDrafter
from moa_client.drafting.settings import DraftingSettings, StandaloneRule
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import connect
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
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
DRAFTS: dict[str, tuple[dict[str, Any], DraftingSettings]] = {
    "as programs do": ({}, DraftingSettings()),
    "none": ({"drafter": "none"}, DraftingSettings()),
    "shipped chain": ({"drafter": "default", "mode": "chain", "length": 5}, DraftingSettings("device", rounds=5)),
    "shipped chain, streamed": ({"drafter": "default", "mode": "chain", "length": 5}, DraftingSettings("device")),
    "shipped tree": ({"drafter": "default", "mode": "tree"}, DraftingSettings(tree=True)),
    "look-up": ({"drafter": "lookup"}, DraftingSettings()),
}
TOKENS = 20  # of an answer
LONG = AnswerSettings(max_tokens=128)
MOST_DOWN, MOST_UP = 60, 12  # bytes a token of a long one
WRITING = DraftingSettings(standalone=StandaloneRule("auto", end_ms=600_000.0))  # no answer ends without the server


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@cache
def device_of(runner: asyncio.Runner, address: str, name: str) -> Device:
    return load_split_device(runner, ClientSettings(server=address, **DRAFTS[name][0]))


def split_client(runner: asyncio.Runner, address: str, name: str) -> closing[SplitClient]:
    return closing(SplitClient(runner, address, device_of(runner, address, name), mode=DRAFTS[name][1]))


@cache
def alone(address: str, tokens: tuple[int, ...], settings: AnswerSettings) -> tuple[int, ...]:
    """What the server writes without a client's drafts."""
    with closing(PlainClient(address)) as client:
        return client.ask(tokens, settings).tokens


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


@pytest.mark.torch
@pytest.mark.long
def test_greedy_text_is_what_transformers_generates(
    runner: asyncio.Runner,
    float32_server: str,
    tokenizer: Tokenizer,
    greedy: Callable[[list[int], list[int]], list[int]],
) -> None:
    with split_client(runner, float32_server, "shipped tree") as client:
        for prompt in PROMPTS[::2]:
            tokens = chat_tokens(tokenizer, prompt)
            written = list(client.ask(tokens, AnswerSettings(max_tokens=TOKENS)).tokens)
            assert written == greedy(tokens, written), prompt
            assert tokenizer.eos_token_id not in written[:-1], prompt
            assert len(written) == TOKENS or written[-1] == tokenizer.eos_token_id, prompt


@pytest.mark.parametrize(("temperature", "prompts"), [(0.0, PROMPTS[::3]), (0.7, PROMPTS[1::6]), (1.0, PROMPTS[2::6])])
@pytest.mark.parametrize("name", DRAFTS)
def test_text_is_what_the_same_server_writes_without_drafts(
    runner: asyncio.Runner, exact_server: str, tokenizer: Tokenizer, name: str, temperature: float, prompts: list[str]
) -> None:
    with split_client(runner, exact_server, name) as client:
        for seed, prompt in enumerate(prompts):
            tokens = tuple(chat_tokens(tokenizer, prompt))
            settings = AnswerSettings(Sampling(temperature, seed=seed), max_tokens=TOKENS)
            assert client.ask(tokens, settings).tokens == alone(exact_server, tokens, settings), (prompt, seed)
        while name == "shipped chain" and not client.figures.accepted:  # its memory may come after an answer
            client.ask(tokens, settings)


def test_an_answer_takes_few_bytes_while_the_server_drafts(
    runner: asyncio.Runner, exact_server: str, tokenizer: Tokenizer
) -> None:
    prompt, provisional = chat_tokens(tokenizer, "Explain to a child, in four long paragraphs, why the sky is blue."), 1
    while provisional:  # a busy machine may lose its link, and then all rows come
        with split_client(runner, exact_server, "as programs do") as client:
            client.ask(prompt, LONG)
            figures = client.figures
        provisional = figures.provisional
    assert figures.tokens == LONG.max_tokens
    assert figures.accepted == 0  # this device drafted nothing
    assert figures.memory_bytes > 4 * 324  # it could write alone
    assert figures.down_bytes <= MOST_DOWN * LONG.max_tokens
    assert figures.up_bytes <= MOST_UP * LONG.max_tokens


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(0.7, seed=3, top_p=0.95)], ids=["greedy", "sampled"])
async def test_the_target_s_own_model_is_never_corrected(
    exact_server: str, tokenizer: Tokenizer, sampling: Sampling
) -> None:
    settings = ClientSettings(server=exact_server, drafter="none", companion="default")
    asked, prompt = AnswerSettings(sampling, max_tokens=60), tuple(chat_tokens(tokenizer, "Why is the sky blue?"))
    shown: list[int] = []
    written, wanted = 0, 30
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
                if len(shown) >= 4 and not written:
                    wanted = min(wanted, asked.max_tokens - len(shown) - 4)  # on a busy machine less may be left
                    engine.go_offline()
            elif isinstance(event, Provisional):
                written += len(event.tokens)
                if written == wanted:
                    engine.go_online()
            elif isinstance(event, Ended):
                assert not event.provisional
        await engine.close()
    assert tuple(shown) == alone(exact_server, prompt, asked)
    assert written >= wanted

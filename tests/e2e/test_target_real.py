"""The target in torch on the real default model, in float32, against transformers' own generate."""

import pytest
import torch
from moa_server.verifier import Target
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.models import ModelFiles, load_target_model, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from transformers import PreTrainedModel

pytestmark = pytest.mark.torch

PROMPTS = ["What is the capital of France?", "Write a haiku about the sea.", "List three uses of a brick:\n\n1. "]
NEW_TOKENS = 24


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


@pytest.fixture(scope="module")
def reference(default_model_files: ModelFiles) -> PreTrainedModel:
    return load_target_model(default_model_files, torch.float32)


@pytest.fixture(scope="module")
def target(default_model_files: ModelFiles) -> Target:
    return TorchTarget(load_target_model(default_model_files, torch.float32))


def chat_text(tokenizer: Tokenizer, prompt: str) -> str:
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)


def own_greedy(model: PreTrainedModel, tokens: list[int]) -> list[int]:
    with torch.no_grad():
        out = model.generate(torch.tensor([tokens]), max_new_tokens=NEW_TOKENS, do_sample=False)
    return [int(token) for token in out[0, len(tokens) :]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_steps_and_trees_give_the_text_of_generate(
    target: Target, reference: PreTrainedModel, tokenizer: Tokenizer, prompt: str
) -> None:
    tokens = tokenizer.encode(chat_text(tokenizer, prompt))
    expected = own_greedy(reference, tokens)

    plain: list[int] = []
    cache = target.new_cache()
    output = target.prefill(cache, tokens)
    while len(plain) < len(expected):
        plain.append(int(output.logits[-1].argmax()))
        output = target.forward(cache, plain[-1:])
    assert plain == expected

    # The same text out of trees: behind the newest token a right branch of two and a wrong one stand side by side.
    cache = target.new_cache()
    said = [int(target.prefill(cache, tokens).logits[-1].argmax())]
    while len(said) + 2 < len(expected):
        right = expected[len(said) : len(said) + 2]
        wrong = (right[0] + 1) % target.vocab_size
        choice = target.forward(cache, [said[-1], wrong, *right], [-1, 0, 0, 2]).logits.argmax(-1).tolist()
        assert choice[0] == right[0]
        assert choice[2] == right[1]
        cache.keep([0, 2, 3])
        said += [*right, choice[3]]
    assert said == expected[: len(said)]


def test_the_tokenizer_speaks_the_models_dialect(tokenizer: Tokenizer) -> None:
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode([2]) == "<|im_end|>"
    assert tokenizer.encode("<|im_start|>user\n")[0] == 1
    assert chat_text(tokenizer, "Hi") == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    # Digits are split off first: the double newline before a list's number stays one token.
    assert [tokenizer.decode([token]) for token in tokenizer.encode("\n\n12")] == ["\n\n", "1", "2"]


def test_a_bfloat16_load_is_the_rounding_of_the_float32_load(
    default_model_files: ModelFiles, reference: PreTrainedModel
) -> None:
    rounded = load_target_model(default_model_files, torch.bfloat16).state_dict()
    for name, tensor in reference.state_dict().items():
        assert torch.equal(rounded[name], tensor.to(torch.bfloat16)), name

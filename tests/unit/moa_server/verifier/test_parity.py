"""The target in torch against the numeric vectors of the authors' implementation (../shared/parity).

Their heads have 16 numbers, which the kernels do not take.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moa_server.verifier import Target
from moa_server.verifier.torch_target import TorchTarget
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.torch

CLOSE: dict[str, Any] = {"atol": 1e-4, "rtol": 0.0}


@pytest.fixture(scope="module")
def target(shared_dir: Path) -> Target:
    parity = shared_dir / "parity"
    config = json.loads((parity / "manifest.json").read_text("utf-8"))["configs"]["a"]["llama_config"]
    theta = config.pop("rope_theta")
    config.pop("torch_dtype")
    model = LlamaForCausalLM(LlamaConfig(**config, rope_parameters={"rope_type": "default", "rope_theta": theta}))
    model.load_state_dict(load_file(parity / "a_target.safetensors"))
    return TorchTarget(model.eval())


@pytest.mark.parametrize("row", [0, 1, 2])
def test_hidden_states_and_the_encoders_input(target: Target, shared_dir: Path, row: int) -> None:
    train = np.load(shared_dir / "parity" / "a_train.npz")
    real = int(train["attention_mask"][row].sum())  # row 2 ends in padding
    tokens = [int(token) for token in train["input_ids"][row][:real]]
    for layer, name in ((3, "target_hidden_minus2"), (1, "target_hidden_minus4")):
        cache = target.new_cache()
        output = target.forward(cache, tokens, want_state_layer=layer)
        assert output.state is not None
        np.testing.assert_allclose(output.state, train[name][row][:real], **CLOSE)
        np.testing.assert_allclose(output.hidden, train["target_last_hidden"][row][:real], **CLOSE)
        every4 = range(0, real, 4)
        expected = train["target_logits_every4"][row][: len(every4)]
        np.testing.assert_allclose(output.logits[list(every4)], expected, **CLOSE)
        kv_stack = train["kv_stack"][row][:real]  # [tokens, layers, 2 * kv_heads * head_dim]
        np.testing.assert_allclose(cache.lsa_input(0, real), kv_stack, **CLOSE)


def test_prefill_greedy_text_and_the_first_tree_verification(target: Target, shared_dir: Path) -> None:
    infer = np.load(shared_dir / "parity" / "a_infer.npz")
    prompt, expected = infer["prompt_ids"].tolist(), infer["vanilla_ids"].tolist()
    cache = target.new_cache()
    output = target.forward(cache, prompt)
    np.testing.assert_allclose(output.hidden, infer["prefill.target_last_hidden"], **CLOSE)
    np.testing.assert_allclose(output.logits[-1], infer["prefill.target_last_logits"], **CLOSE)
    text = list(prompt)
    while len(text) < len(expected):
        text.append(int(output.logits[-1].argmax()))
        output = target.forward(cache, text[-1:])
    assert text == expected
    tokens, parents = (infer[f"moa.tree.cycle0.{name}"].tolist() for name in ("verify_ids", "parents"))
    cache.crop(len(prompt))
    output = target.forward(cache, tokens, parents)
    assert output.logits.argmax(-1).tolist() == infer["moa.tree.cycle0.target_argmax"].tolist()

"""The target in torch: where it is computed, by whom, each family as transformers computes it, and the authors' vectors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from moa_server.verifier import Target, torch_target
from moa_server.verifier.attention import PLAIN, AttentionShape, FlashInferAttention, SessionAttention
from moa_server.verifier.pool import BatchPart, Run
from moa_server.verifier.target import Rank, rank_of
from moa_server.verifier.torch_target import TorchTarget, check_shares, choose_attention, choose_device, warm_up
from moa_shared.errors import ConfigError, InternalError, ModelSourceError
from moa_shared.models.network.families import FAMILIES
from moa_shared.models.network.served import is_for_torch
from safetensors.torch import load_file
from structlog.testing import capture_logs
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.families import DENSE_FAMILIES, HYBRIDS, MIXTURES, tiny_dense, tiny_mixture
from tests.support.messages import steady
from tests.support.tiny_models import SIZES, tiny_kernel_target, tiny_model
from tests.support.torch_models import bare, torch_model
from tests.unit.moa_server.verifier.paged_targets import paged_target

pytestmark = pytest.mark.torch

BF16 = torch.bfloat16
WINDOWS = "FlashInfer computes neither sliding windows nor caps of scores here"
TEXT = [(31 * place + 7) % SIZES["vocab_size"] for place in range(40)]
TREE = [-1, -1, 0, 0, 1, 2, 2, 5, 7, 8, 9, 10]  # deeper than a window
PATHS = ([1, 4], [0, 3], [0, 2, 6], [0, 2, 5, 7, 8, 9, 10, 11])
GEMMA_4 = ("gemma 4", "gemma 4, 12B", "gemma 4 with embeddings by layer")
REFUSED = ("ministral", "ministral 3", "phi 4", *GEMMA_4, *HYBRIDS)
COMPUTED = tuple(family for family in DENSE_FAMILIES if family not in REFUSED)
CLOSE: dict[str, Any] = {"atol": 3e-4, "rtol": 0}


@pytest.mark.parametrize(
    ("named", "level", "sees", "device"),
    [
        ("auto", "bf16", True, "cuda"),
        ("auto", "bf16", False, "cpu"),
        ("auto", "float32", True, "cpu"),
        ("cuda", "float32", True, "cuda"),
        ("cpu", "bf16", True, "cpu"),
    ],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, named: str, level: str, sees: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    assert choose_device(named, level) == device


@pytest.mark.parametrize(
    ("installed", "dtype", "head_dim", "shape", "reason"),
    [
        (False, BF16, 64, PLAIN, "flashinfer is not installed: PYTHON -m pip install --editable 'CHECKOUT[cuda]'"),
        (True, torch.float32, 64, PLAIN, "FlashInfer does not compute in float32"),
        (True, BF16, 96, PLAIN, "FlashInfer has no kernels for heads of 96"),
        (True, BF16, 64, AttentionShape((0, 5)), WINDOWS),
        (True, BF16, 64, AttentionShape(cap=2.0), WINDOWS),
        (True, BF16, 128, PLAIN, None),
    ],
)
def test_torch_s_attention_is_taken_where_flashinfer_is_not_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    dtype: torch.dtype,
    head_dim: int,
    shape: AttentionShape,
    reason: str | None,
) -> None:
    monkeypatch.setattr(torch_target, "find_spec", lambda _: object() if installed else None)
    with capture_logs() as logs:
        chosen = choose_attention(dtype, head_dim, shape)
    assert chosen is (FlashInferAttention if reason is None else SessionAttention)
    assert [steady(entry["reason"]) for entry in logs] == ([] if reason is None else [reason])


def test_the_shapes_of_the_first_forwards_are_recorded_and_leave_no_pages() -> None:
    target = paged_target(torch_model(max_position_embeddings=40), "flashinfer")
    warm_up(target)
    cache = target.new_cache()
    cache.reserve(target.kv_bytes() // cache.most_nbytes(1) * 64)  # all pages


def test_generate_still_works_on_a_model_whose_attention_is_ours() -> None:
    prompt = torch.tensor([TEXT[:7]])
    expected = torch_model().generate(prompt, max_new_tokens=12, do_sample=False)
    target = TorchTarget(torch_model())
    assert target.model.generate(prompt, max_new_tokens=12, do_sample=False).tolist() == expected.tolist()


def test_a_forward_that_fails_half_way_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = TorchTarget(torch_model())
    cache = target.new_cache()
    target.forward(cache, TEXT[:7])
    with monkeypatch.context() as patch:
        patch.setattr(target.model.model.layers[1].mlp, "forward", Mock(side_effect=RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            target.forward(cache, TEXT[: len(TREE)], TREE)
    assert cache.length == 7
    expected = bare(torch_model(), [*TEXT[:7], 9])
    np.testing.assert_allclose(target.forward(cache, [9]).logits[-1], expected[-1], **CLOSE)
    with pytest.raises(InternalError, match="A forward of torch was given another backend's cache"):
        target.forward(tiny_kernel_target(tiny_model()).new_cache(), TEXT)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_scaling_that_depends_on_the_length_is_refused(kind: str) -> None:
    model = torch_model()
    factors = [1.0] * (model.config.head_dim // 2)
    model.config.rope_parameters = {
        "rope_type": kind, "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64,
        "short_factor": factors, "long_factor": [2 * factor for factor in factors],
    }  # fmt: skip
    with pytest.raises(ModelSourceError, match=f"LlamaForCausalLM .*'{kind}'"):
        TorchTarget(model)


@pytest.mark.parametrize("family", COMPUTED)
def test_a_text_whole_and_in_parts_and_a_tree_as_its_paths(family: str) -> None:
    model, target = tiny_dense(family), TorchTarget(tiny_dense(family))
    expected, cache = bare(model, TEXT), target.new_cache()
    for start, stop in ((0, 3), (3, 20), (20, 21), (21, 40)):
        got = target.forward(cache, TEXT[start:stop]).logits
        np.testing.assert_allclose(got, expected[start:stop], **CLOSE)
    for length in (2, 30):
        cache = target.new_cache()
        np.testing.assert_allclose(target.forward(cache, TEXT[:length]).logits, expected[:length], **CLOSE)
        got = target.forward(cache, TEXT[: len(TREE)], TREE).logits
        for path in PATHS:
            of_path = bare(model, TEXT[:length] + [TEXT[node] for node in path])[length:]
            np.testing.assert_allclose(got[path], of_path, **CLOSE)


@pytest.mark.parametrize("family", COMPUTED)
def test_bfloat16_stays_close(family: str) -> None:
    target, expected = TorchTarget(tiny_dense(family).to(BF16)), bare(tiny_dense(family), TEXT)
    got = target.forward(target.new_cache(), TEXT).logits
    cosines = (got * expected).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert np.median(cosines) > 0.99


@pytest.mark.parametrize("family", [*REFUSED, *MIXTURES])
def test_others_are_refused_by_name(family: str) -> None:
    model = tiny_dense(family) if family in REFUSED else tiny_mixture(family)
    with pytest.raises(ModelSourceError, match=r"which the torch levels .*\.") as caught:
        TorchTarget(model)
    assert caught.value.hint == "Give --execution int8."


def test_every_family_is_computed_or_refused() -> None:
    computed = {tiny_dense(family).config.model_type for family in COMPUTED} | {"llama"}
    assert {family for family in FAMILIES if is_for_torch({"model_type": family})} == computed


def test_a_forward_survives_its_order() -> None:
    tree = BatchPart([7, 8, 9], [0, 1, 1], 63, [4, 2], [-1, 0, 0])
    run = Run([tree, BatchPart([5], range(1), 3, [9, 6])], 4, [0, 3], [2])
    whole = Run([tree, BatchPart([5], [0], 3, [9])], 4, [0, 3], [2])  # with the pages that are in use
    assert Run.of(*json.loads(json.dumps(run.fields()))) == whole


LAUNCHED = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "29500",
}  # fmt: skip
SMOLLM2 = {"model_type": "llama", "num_attention_heads": 9, "num_key_value_heads": 3}


def test_torchrun_says_the_rank_and_a_process_by_itself_has_none() -> None:
    assert rank_of(LAUNCHED) == Rank(3, 4, 1, 2)
    for environment in ({}, {"WORLD_SIZE": "4", "RANK": "3"}, {**LAUNCHED, "WORLD_SIZE": "1", "RANK": "0"}):
        assert rank_of(environment) is None


def test_heads_must_be_split_evenly_and_other_families_are_not_shared() -> None:
    check_shares(SMOLLM2, "smol", 3)
    check_shares({"model_type": "llama", "num_attention_heads": 8}, "gpt", 8)
    with pytest.raises(ConfigError, match="processes cannot share them"):
        check_shares(SMOLLM2, "smol", 2)
    gemma = {"model_type": "gemma2", "num_attention_heads": 8}
    check_shares(gemma, "gemma", 1)
    with pytest.raises(ConfigError, match="gemma is of the family gemma"):
        check_shares(gemma, "gemma", 2)


CLOSE_PARITY: dict[str, Any] = {"atol": 1e-4, "rtol": 0.0}


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
        np.testing.assert_allclose(output.states[layer], train[name][row][:real], **CLOSE_PARITY)
        np.testing.assert_allclose(output.hidden, train["target_last_hidden"][row][:real], **CLOSE_PARITY)
        every4 = range(0, real, 4)
        expected = train["target_logits_every4"][row][: len(every4)]
        np.testing.assert_allclose(output.logits[list(every4)], expected, **CLOSE_PARITY)
        kv_stack = train["kv_stack"][row][:real]  # [tokens, layers, 2 * kv_heads * head_dim]
        np.testing.assert_allclose(cache.lsa_input(0, real), kv_stack, **CLOSE_PARITY)


def test_prefill_greedy_text_and_the_first_tree_verification(target: Target, shared_dir: Path) -> None:
    infer = np.load(shared_dir / "parity" / "a_infer.npz")
    prompt, expected = infer["prompt_ids"].tolist(), infer["vanilla_ids"].tolist()
    cache = target.new_cache()
    output = target.forward(cache, prompt)
    np.testing.assert_allclose(output.hidden, infer["prefill.target_last_hidden"], **CLOSE_PARITY)
    np.testing.assert_allclose(output.logits[-1], infer["prefill.target_last_logits"], **CLOSE_PARITY)
    text = list(prompt)
    while len(text) < len(expected):
        text.append(int(output.logits[-1].argmax()))
        output = target.forward(cache, text[-1:])
    assert text == expected
    tokens, parents = (infer[f"moa.tree.cycle0.{name}"].tolist() for name in ("verify_ids", "parents"))
    cache.crop(len(prompt))
    output = target.forward(cache, tokens, parents)
    assert output.logits.argmax(-1).tolist() == infer["moa.tree.cycle0.target_argmax"].tolist()

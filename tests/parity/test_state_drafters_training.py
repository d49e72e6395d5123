"""EAGLE-3 and DFlash in their training form: guesses, losses and every gradient norm as in the authors' code."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter.kinds import DrafterConfig
from moa_training.data.batches import PackedBatch
from moa_training.objective.objective import guess_losses
from moa_training.objective.states import (
    StateRows,
    TrainingBlocks,
    TrainingEagle3,
    eagle3_rows,
    place_blocks,
    step_weights,
    teach,
)
from moa_training.settings import BlockSettings
from moa_training.teacher.teacher import Activations, Teacher
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import LlamaForCausalLM

Tensors = dict[str, torch.Tensor]


class Vectors:
    """The vectors of one kind of drafter."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text())["training"]
        with np.load(folder / "a_train.npz") as arrays:
            self.arrays = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        self.target = self.read("a_target")

    def read(self, name: str) -> Tensors:
        return {key: tensor.float() for key, tensor in load_file(self.folder / name / "model.safetensors").items()}

    def teacher(self, hidden: torch.Tensor, eps: float) -> torch.Tensor:
        """The target's logits of states before its final norm."""
        head = self.target.get("lm_head.weight", self.target["model.embed_tokens.weight"])
        return F.rms_norm(hidden, hidden.shape[-1:], self.target["model.norm.weight"], eps) @ head.t()


def sizes(**options: Any) -> DrafterConfig:
    fixed = {"vocab_size": 256, "hidden_size": 64, "target_heads": 4, "target_kv_heads": 2, "target_head_dim": 16}
    unused = {"ca_kv_heads": 2, "ca_mlp": 96, "lsa_heads": 4, "lsa_kv_heads": 2, "lsa_mlp": 8}
    return DrafterConfig(**{**fixed, **unused, "sa_kv_heads": 2, **options})


def one_hot(logits: torch.Tensor) -> torch.Tensor:
    return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()


def entropy(weight: torch.Tensor, chances: torch.Tensor) -> float:
    """What cross-entropy is above the divergence."""
    return float(-(weight * (chances * chances.log()).sum(-1)).sum())


def check_gradients(module: torch.nn.Module, expected: Mapping[str, float]) -> None:
    named = {name.replace("midlayer.", "layers.0."): norm for name, norm in expected.items()}
    named.pop("embed_tokens.weight", None)  # which SpecForge trains if it is asked to; ours are the target's
    assert {name: weight.grad is not None for name, weight in module.named_parameters()} == dict.fromkeys(named, True)
    for name, weight in module.named_parameters():
        assert weight.grad is not None
        assert float(weight.grad.norm()) == pytest.approx(named[name], rel=1e-4, abs=1e-5), name


class Eagle3:
    """One of the recorded drafters."""

    def __init__(self, vectors: Vectors, name: str, **options: Any) -> None:
        tensors = vectors.read(name)
        offsets = tensors.pop("d2t").long()
        del tensors["t2d"]
        self.draft_ids = offsets + torch.arange(len(offsets))
        fixed = sizes(kind="eagle3", target_layers=7, state_entries=(2, 3, 4), sa_mlp=80, draft_vocab=96)
        self.network = TrainingEagle3(dataclasses.replace(fixed, **options))
        names = self.network.state_dict().keys()
        renamed = {key.replace("midlayer.", "layers.0."): tensor for key, tensor in tensors.items()}
        self.network.load_state_dict({key: renamed[key] for key in names})
        self.embeddings = renamed.get("embed_tokens.weight", vectors.target["model.embed_tokens.weight"])


@pytest.fixture(scope="module")
def eagle3(shared_dir: Path) -> Vectors:
    return Vectors(shared_dir / "parity" / "eagle3")


@pytest.fixture(scope="module")
def dflash(shared_dir: Path) -> Vectors:
    return Vectors(shared_dir / "parity" / "dflash")


@pytest.mark.parametrize("case", ["kl_decay1", "ce_decay08"])
@pytest.mark.parametrize("name", ["plain", "e31"])
def test_eagle3_learns_as_in_speculators(eagle3: Vectors, name: str, case: str) -> None:
    arrays, record = eagle3.arrays, eagle3.manifest[name][case]
    drafter = (
        Eagle3(eagle3, "a_eagle3")
        if name == "plain"
        else Eagle3(eagle3, "a_eagle31_speculators", feature_norm="each", normed_residual=True, normed_feedback=True)
    )
    documents = arrays["inputs.document_ids"].long()
    same = documents[:, None] == documents
    rows = StateRows(
        arrays["inputs.features"][None],
        drafter.embeddings[arrays["inputs.token_ids"].long()][None],
        arrays["inputs.position_ids"].long()[None],
        same.tril()[None],
    )
    logits = eagle3.teacher(arrays["inputs.last_hidden_before_final_norm"], 1e-5)[:, drafter.draft_ids]
    teacher = logits.softmax(-1) if case.startswith("kl") else one_hot(logits)
    total = torch.zeros(())
    for step, normed in enumerate(drafter.network.steps(rows, record["ttt_steps"])):
        guessed = drafter.network.lm_head(normed)[0]
        assert torch.allclose(guessed[::8], arrays[f"{name}.step{step}.logits_every8"], atol=1e-4)
        counted = arrays["inputs.loss_mask"].roll(-step) * (torch.arange(62) < 62 - step)
        weight, truth = record["decay"] ** step * counted / counted.sum(), teacher.roll(-step, 0)
        loss, _ = guess_losses(guessed, truth, weight)
        surplus = entropy(weight, truth) if case.startswith("kl") else 0.0
        assert float(loss.detach()) - surplus == pytest.approx(record["step_losses"][step], abs=1e-5)
        total = total + loss
    total.backward()
    check_gradients(drafter.network, record["grad_l2"])


def test_eagle3_learns_as_in_specforge(eagle3: Vectors) -> None:
    arrays, record = eagle3.arrays, eagle3.manifest["specforge"]
    drafter = Eagle3(eagle3, "a_eagle3")
    ids, answer = arrays["specforge.token_ids"].long()[None], arrays["specforge.loss_mask"].bool()[None]
    # Theirs is of rows, each of which belongs to the token before ours.
    batch = PackedBatch(ids, torch.arange(40)[None], torch.zeros_like(ids), answer.roll(1, dims=1))
    model = LlamaForCausalLM.from_pretrained(eagle3.folder / "a_target", dtype=torch.float32)
    target = Teacher(model, 0, drafter.network.config.state_entries).run_packed(batch)
    chances, proposable = teach(target.last_hidden, model.lm_head.weight.detach(), drafter.draft_ids)
    settings = BlockSettings(prompts=False)
    weight, count = step_weights(batch, proposable, settings, record["ttt_length"], 0.8)
    rows = eagle3_rows(target, batch)
    for step, normed in enumerate(drafter.network.steps(rows, len(weight))):
        theirs = arrays[f"specforge.step{step}.logits_every8"]
        assert torch.allclose(drafter.network.lm_head(normed)[0, 1::8], theirs, atol=1e-4)
        loss, _ = guess_losses(
            drafter.network.lm_head(normed), chances.roll(-step, 1), weight[step] / count / 0.8**step
        )
        assert float(loss.detach()) == pytest.approx(record["step_losses"][step], abs=1e-5)
    losses = drafter.network(rows, chances, weight / count)
    assert float(losses.total.detach()) == pytest.approx(record["total_loss"], abs=1e-5)
    losses.total.backward()
    check_gradients(drafter.network, record["grad_l2"])


@pytest.mark.parametrize("case", ["ce_fixed", "kl_fixed"])
def test_dflash_learns_as_in_speculators(dflash: Vectors, case: str) -> None:
    arrays, record = dflash.arrays, dflash.manifest[case]
    embeddings = dflash.target["model.embed_tokens.weight"]
    config = sizes(
        kind="dflash", target_layers=6, state_entries=(2, 4), sa_mlp=96, own_layers=2, head_norms=True, block_size=8,
        mask_token=255, rms_norm_eps=1e-6,
    )  # fmt: skip
    network = TrainingBlocks(config, embeddings[config.mask_token])
    network.load_state_dict(dflash.read("a_dflash"))
    ids, anchors = arrays["input_ids"].long()[None], arrays["anchors"].long()[None]
    places = torch.arange(40)[None]
    batch = PackedBatch(ids, places, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
    blocks = place_blocks(batch, anchors, torch.ones_like(anchors, dtype=torch.bool), 8, 4.0)
    assert blocks.visible[0].equal(arrays["visible"].view(4, 8, 72)[:, 0, :40].bool())
    hidden = F.rms_norm(
        arrays["last_hidden_before_final_norm"], (64,), dflash.target["model.norm.weight"], config.rms_norm_eps
    )[None]
    target = Activations(
        embeddings[ids], torch.empty(0), hidden, None, places, entries=arrays["features"][None].float()
    )
    logits = network.rows(target, blocks)[0] @ embeddings.t()
    assert torch.allclose(logits[:2].flatten(0, 1), arrays["logits"], atol=1e-4)
    teacher = (hidden @ embeddings.t()).softmax(-1) if case.startswith("kl") else one_hot(hidden @ embeddings.t())
    weight = blocks.weight / 28
    losses = network(target, dataclasses.replace(blocks, weight=weight), embeddings, teacher)
    surplus = entropy(weight, teacher[0][blocks.guessed]) if case.startswith("kl") else 0.0
    assert float(losses.total.detach()) - surplus == pytest.approx(record["loss"], abs=1e-5)
    losses.total.backward()
    check_gradients(network, record["grad_l2"])

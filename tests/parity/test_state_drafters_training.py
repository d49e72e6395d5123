"""EAGLE-3 and DFlash in their training form: guesses, losses and every gradient norm as in the authors' code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.drafter import DrafterConfig
from moa_training.objective.eagle3 import StateRows, TrainingEagle3
from moa_training.objective.losses import guess_losses
from safetensors.torch import load_file
from torch.nn import functional as F

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
    return DrafterConfig(
        **{
            **dict(vocab_size=256, hidden_size=64, target_heads=4, target_kv_heads=2, target_head_dim=16),
            **dict(sa_kv_heads=2, ca_kv_heads=2, ca_mlp=96, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=8),
            **options,
        }
    )


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
        config = sizes(
            kind="eagle3", target_layers=7, state_entries=(2, 3, 4), sa_mlp=80, draft_vocab=96, rms_norm_eps=1e-5
        )
        self.network = TrainingEagle3(DrafterConfig(**{**{f: getattr(config, f) for f in config.__slots__}, **options}))
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
    total.backward()  # type: ignore[no-untyped-call]
    check_gradients(drafter.network, record["grad_l2"])


def test_eagle3_learns_as_in_specforge(eagle3: Vectors) -> None:
    arrays, record = eagle3.arrays, eagle3.manifest["specforge"]
    drafter = Eagle3(eagle3, "a_eagle3")
    ids = arrays["specforge.token_ids"].long()
    target = llama(eagle3, "a_target")(input_ids=ids[None], output_hidden_states=True)
    batch = PackedBatch(
        ids[None], torch.arange(40)[None], torch.zeros(1, 40, dtype=torch.long), torch.ones(1, 40, dtype=torch.bool)
    )
    print(batch, target.logits.shape, record)

"""The training form: masks, activations, losses and every gradient norm as in the authors' code."""

from __future__ import annotations

import pytest
import torch
from moa_training.objective.blocks import Blocks
from moa_training.objective.moa import TrainingDrafter
from moa_training.objective.objective import (
    Prediction,
    feature_losses,
)
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

from tests.parity.conftest import Reference
from tests.support.training_blocks import build_blocks

AUTHORS = LossSettings(cross_entropy=0.1, feature=1.0, count_starts=True)
CASES = [f"n0_{name}" for name in ("stair_all", "stair_none", "mixed", "plain")] + [
    f"n{reused}_{name}" for reused in (1, 3) for name in ("stair_none", "mixed")
]


class Case:
    """One recorded forward of the authors' training code, run with ours."""

    def __init__(self, reference: Reference, name: str) -> None:
        self.record = reference.manifest["training"]["moa_cases"][name]
        self.reused = self.record["target_layer_inference"]
        self.arrays = {key: torch.tensor(value) for key, value in reference.train.items()}
        self.name = name
        self.head = reference.weights["lm_head.weight"]
        self.answer = self.arrays["response_mask"].bool()
        self.real = self.arrays["attention_mask"].bool()
        model = reference.model().requires_grad_(False)
        checkpoint = reference.checkpoint(self.reused)
        layers = list(model.model.layers)
        self.drafter = TrainingDrafter(
            checkpoint.config, layers[len(layers) - self.reused :], model.model.norm, inject_true_state=True
        )
        self.drafter.load_state_dict(checkpoint.torch_tensors())
        every, staircase = self.record["every"], self.record["row_uses_staircase"]
        self.blocks = build_blocks(
            self.answer,
            torch.tensor(every) if every else None,
            torch.tensor(staircase) if staircase else torch.zeros(3, dtype=torch.bool),
        )
        self.target = Activations(
            model.model.embed_tokens(self.arrays["input_ids"].long()),
            self.arrays["kv_stack"],
            self.arrays["target_last_hidden"],
            self.arrays[f"target_hidden_minus{self.reused + 1}"] if self.reused else None,
            self.arrays["position_ids"].long(),
        )

    def predict(self) -> Prediction:
        # Of padded rows the authors' masks differ from ours, and nothing of them counts.
        blocks = Blocks(
            self.blocks.start,
            torch.where(self.real[..., None], self.blocks.self_visible, self.theirs("sa_visible").bool()),
            torch.where(self.real[..., None], self.blocks.memory_visible, self.theirs("ca_visible").bool()),
        )
        prediction: Prediction = self.drafter(self.target, blocks)
        return prediction

    def theirs(self, name: str) -> torch.Tensor:
        return self.arrays[f"{self.name}.{name}"]

    def assert_close(self, ours: torch.Tensor, name: str) -> None:
        torch.testing.assert_close(ours[self.real], self.theirs(name)[self.real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_masks(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    assert torch.equal(case.blocks.self_visible[case.real], case.theirs("sa_visible").bool()[case.real])
    assert torch.equal(case.blocks.memory_visible[case.real], case.theirs("ca_visible").bool()[case.real])


@pytest.mark.parametrize("name", CASES)
def test_activations(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    prediction = case.predict()
    if f"{name}.sa_out" in case.arrays:
        case.assert_close(prediction.self_out, "sa_out")
    crossed = prediction.feature if case.reused == 0 else prediction.state
    assert crossed is not None
    case.assert_close(crossed, "ca_out")
    if case.reused:
        assert case.target.state is not None
        injected = torch.where(case.blocks.is_start[..., None], case.target.state, crossed)
        case.assert_close(injected, "tli_in")
        case.assert_close(prediction.feature, "tli_out_norm")
    if f"{name}.logits_every4" in case.arrays:
        logits = (prediction.feature @ case.head.t())[:, ::4]
        real = case.real[:, ::4]
        torch.testing.assert_close(logits[real], case.theirs("logits_every4")[real], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_losses_and_gradients(reference: Reference, name: str) -> None:
    case = Case(reference, name)
    losses = feature_losses(case.predict(), case.target, case.head, case.answer.float(), AUTHORS, case.blocks.is_start)
    record = case.record
    assert losses.total.item() == pytest.approx(record["total_loss"], abs=1e-5)
    assert losses.cross_entropy.item() == pytest.approx(record["losses"]["forward_KL"], abs=1e-5)
    assert losses.feature is not None
    assert losses.feature.item() == pytest.approx(record["losses"]["feature_loss"], abs=1e-5)
    if case.reused:
        assert losses.state is not None
        assert losses.state.item() == pytest.approx(record["losses"]["prev_feature_loss"], abs=1e-5)
    losses.total.backward()
    norms = {key: float(value.grad.norm()) for key, value in case.drafter.named_parameters() if value.grad is not None}
    assert norms == pytest.approx(record["grad_l2_norms"], rel=1e-4)


def test_our_state_loss_leaves_block_starts_out(reference: Reference) -> None:
    """The authors count injected positions as zero error; ours is their loss times the share that is no start."""
    case = Case(reference, "n1_mixed")
    weight = case.answer.float()
    theirs = feature_losses(case.predict(), case.target, case.head, weight, AUTHORS, case.blocks.is_start)
    ours = feature_losses(case.predict(), case.target, case.head, weight, LossSettings(), case.blocks.is_start)
    share = (weight * ~case.blocks.is_start).sum() / weight.sum()
    assert theirs.state is not None
    assert ours.state is not None
    assert theirs.state.item() == pytest.approx((ours.state * share).item(), rel=1e-5)
    assert share < 1

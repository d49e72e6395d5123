"""The training form predicts, at every position, what the drafter standing at the block's start drafts there."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import DraftState
from moa_shared.drafter.kinds.weights import ArrayWeights
from moa_shared.models import ModelFiles
from moa_training.fit.setup import drafter_config, starting_tensors
from moa_training.objective.blocks import with_own_choices
from moa_training.objective.moa import MemoryObjective, TrainingDrafter, read_behind
from moa_training.objective.objective import Lesson, Prediction, feature_losses
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations, load_teacher
from torch.nn import functional

from tests.support.decoders import decoder_of, encoder_of
from tests.support.skipping import examples
from tests.support.tiny_training import tiny_settings
from tests.support.torch_models import build_blocks, torch_model

LENGTH, VOCAB = 18, 30
CONFIG = DrafterConfig(
    vocab_size=VOCAB, hidden_size=18, target_layers=4, target_heads=6, target_kv_heads=3, target_head_dim=4,
    sa_kv_heads=2, sa_mlp=24, ca_kv_heads=1, ca_mlp=20, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=12,
)  # fmt: skip


MODEL: Any = torch_model(
    seed=0, vocab_size=VOCAB, hidden_size=18, intermediate_size=28, num_hidden_layers=4, num_attention_heads=6,
    num_key_value_heads=3, head_dim=4, rms_norm_eps=1e-5, tie_word_embeddings=True,
    bos_token_id=None, eos_token_id=None,
).requires_grad_(False)  # fmt: skip
EMBEDDINGS = MODEL.get_input_embeddings().weight.detach()


def activations(tokens: torch.Tensor, reused_layers: int) -> Activations:
    """What the target computes for [rows, length] tokens."""
    output = MODEL(tokens, output_hidden_states=True, use_cache=True)
    layers = output.past_key_values.layers
    kv = torch.stack([torch.stack((layer.keys, layer.values), 3) for layer in layers])
    kv = kv.permute(1, 3, 0, 2, 4, 5).flatten(3)  # [rows, length, layers, KV width]
    state = output.hidden_states[4 - reused_layers] if reused_layers else None
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    return Activations(EMBEDDINGS[tokens], kv, output.hidden_states[-1], state, positions)


def make_checkpoint(reused_layers: int, *, ca: bool = True) -> Checkpoint:
    config = dataclasses.replace(CONFIG, reused_layers=reused_layers, output_norm=reused_layers == 0, lsa=ca, ca=ca)
    tensors = fresh_tensors(config, seed=6)
    generator = np.random.default_rng(1)
    for name in tensors:
        if "norm" in name or name.endswith("bias"):
            tensors[name] += np.float32(0.3) * generator.standard_normal(tensors[name].shape, np.float32)
    return Checkpoint(config, tensors, "")


def make_drafter(reused_layers: int, *, ca: bool = True) -> TrainingDrafter:
    checkpoint = make_checkpoint(reused_layers, ca=ca)
    reused = list(MODEL.model.layers[4 - reused_layers :])
    drafter = TrainingDrafter(checkpoint.config, reused, MODEL.model.norm)
    drafter.load_state_dict(checkpoint.torch_tensors())
    return drafter


def draft_at(
    tokens: list[int], start: int, reused_layers: int, target: Activations, *, ca: bool = True
) -> torch.Tensor:
    """Logits of the newest token at start + 1 and of each token after it, with memory up to `start`."""
    checkpoint = make_checkpoint(reused_layers, ca=ca)
    arrays = {name: tensor.numpy() for name, tensor in MODEL.state_dict().items()}
    arrays |= {"model.embed_tokens.weight": EMBEDDINGS.numpy(), "lm_head.weight": EMBEDDINGS.numpy()}
    decoder = decoder_of(checkpoint, ArrayWeights(arrays), "float32")
    state = DraftState(decoder)
    state.extend(tokens[: start + 2])
    if ca:
        state.append_memory(0, encoder_of(checkpoint, torch.float32).encode(target.kv[0, : start + 1]).numpy())
    if target.state is not None:
        state.append_reused_state(0, target.state[0, : start + 1].numpy())
    rows = [state.begin()]
    for step, token in enumerate(tokens[start + 2 :]):
        rows.append(state.expand([token], [step - 1]))
    return torch.from_numpy(np.concatenate(rows))


@pytest.mark.parametrize(("reused_layers", "ca"), [(0, True), (1, True), (3, True), (0, False), (1, False)])
@settings(max_examples=examples(8))
@given(st.integers(2, 9), st.integers(1, 6), st.integers(0, 99))
def test_every_position_is_what_drafting_gives(
    reused_layers: int, ca: bool, every: int, prompt: int, seed: int
) -> None:
    tokens = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(seed))
    target = activations(tokens, reused_layers)
    inside = torch.arange(LENGTH)[None] >= prompt
    blocks = build_blocks(inside, torch.tensor([every]), torch.tensor([False]))
    with torch.no_grad():
        logits = make_drafter(reused_layers, ca=ca)(target, blocks).feature[0] @ EMBEDDINGS.t()
    starts = blocks.start[0].tolist()
    compared = 0
    for start in sorted(set(starts)):
        stop = LENGTH - starts[::-1].index(start)  # the block's end
        if stop > start + 1:
            drafted = draft_at(tokens[0, :stop].tolist(), start, reused_layers, target, ca=ca)
            torch.testing.assert_close(logits[start + 1 : stop], drafted, rtol=0, atol=1e-4)
            compared += stop - start - 1
    assert compared > 0


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_guesses_are_drafted_on_as_the_drafter_does_alone(reused_layers: int) -> None:
    """Other tokens behind the newest known one of each block: later blocks do not see them."""
    generator = torch.Generator().manual_seed(11)  # of this seed some guesses in both blocks are other tokens
    tokens, others = (torch.randint(VOCAB, (1, LENGTH), generator=generator) for _ in range(2))
    target = activations(tokens, reused_layers)
    blocks = build_blocks(torch.arange(LENGTH)[None] >= 2, torch.tensor([6]), torch.tensor([False]))
    guessed = with_own_choices(tokens, others, blocks, generator)
    read = dataclasses.replace(target, guessed=EMBEDDINGS[guessed])
    with torch.no_grad():
        logits = make_drafter(reused_layers)(read, blocks).feature[0] @ EMBEDDINGS.t()
    for start in (6, 12):
        text = [*tokens[0, : start + 1].tolist(), *guessed[0, start + 1 : start + 6].tolist()]
        drafted = draft_at(text, start, reused_layers, target)
        assert text[start + 2 : -1] != tokens[0, start + 2 : start + 5].tolist()
        torch.testing.assert_close(logits[start + 1 : start + 6], drafted, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("reused_layers", "ca"), [(0, True), (2, True), (2, False)])
def test_all_that_is_trained_gets_a_gradient(reused_layers: int, ca: bool) -> None:
    drafter, tokens = make_drafter(reused_layers, ca=ca), torch.randint(VOCAB, (2, LENGTH))
    blocks = build_blocks(torch.ones_like(tokens) > 0, torch.tensor([5, 7]), torch.tensor([True, False]))
    drafter(activations(tokens, reused_layers), blocks).feature.square().sum().backward()
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in drafter.parameters())


def test_a_share_of_the_tokens_carries_gradients_and_all_have_their_rows() -> None:
    drafter, kv = make_drafter(0), activations(torch.randint(VOCAB, (2, 6)), 0).kv.requires_grad_()
    whole = drafter.memory(kv)
    drafter.gradient_share = 0.25
    rows = drafter.memory(kv)
    torch.testing.assert_close(rows, whole)
    (gradient,) = torch.autograd.grad(rows.sum(), kv)
    assert int(gradient.flatten(0, 1).flatten(1).any(1).sum()) == 3  # of twelve tokens


def test_fresh_memory_comes_nearer_to_the_state(files: ModelFiles) -> None:
    drafter = {"reused_layers": 1, "draft_vocab": 0, "lsa_mlp": 16}
    settings = tiny_settings(drafter=drafter)
    config = drafter_config(settings, files)
    teacher = load_teacher(files, 1, torch.float32, torch.device("cpu"))
    objective = MemoryObjective(Lesson(settings, config, teacher))
    network = objective.network()
    network.load_state_dict(starting_tensors(config, teacher, None, 0, warm=True))
    run = teacher.run(torch.randint(0, 96, (8, 60)), torch.arange(60)[None].expand(8, -1), None)
    state = run.state
    assert state is not None
    before = float((network.memory(run.kv) - state).square().mean().detach())
    objective.fit_inputs(network, lambda layer, tokens: (run, state))
    after = float((network.memory(run.kv) - state).square().mean().detach())
    assert after < 0.8 * float(state.var())
    assert after < before


@pytest.mark.parametrize("reused_layers", [0, 1, 3])
def test_other_tokens_behind_block_starts_are_read_after_the_text_before_them(
    files: ModelFiles, reused_layers: int
) -> None:
    length, every = 24, 6
    ids = torch.randint(5, 90, (1, length), generator=torch.Generator().manual_seed(1))
    teacher = load_teacher(files, reused_layers, torch.float32, torch.device("cpu"))
    text = teacher.run(ids, torch.arange(length)[None], None)
    inside_answer = (torch.arange(length) >= 4)[None]
    blocks = build_blocks(inside_answer, torch.tensor([every]), torch.tensor([False]))
    same = read_behind(teacher, text, ids, blocks)
    torch.testing.assert_close(same.last_hidden, text.last_hidden, rtol=0, atol=1e-4)
    torch.testing.assert_close(same.state, text.state, rtol=0, atol=1e-4)
    other = torch.where(blocks.is_start, ids, (ids + 3) % 90)
    got = read_behind(teacher, text, other, blocks)
    for start in range(6, length, every):
        mixed = torch.cat((ids[:, : start + 1], other[:, start + 1 : start + every]), 1)
        expected = teacher.run(mixed, torch.arange(mixed.shape[1])[None], None)
        inside = slice(start, mixed.shape[1])
        torch.testing.assert_close(got.last_hidden[:, inside], expected.last_hidden[:, inside], rtol=0, atol=1e-4)
        if reused_layers:
            assert got.state is not None
            assert expected.state is not None
            torch.testing.assert_close(got.state[:, inside], expected.state[:, inside], rtol=0, atol=1e-4)
    assert got.guessed is not None
    torch.testing.assert_close(got.guessed, teacher.embeddings[other])


@pytest.mark.parametrize("count_starts", [False, True])
def test_losses_are_weighted_means_over_positions(count_starts: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    feature, state, truth, true_state = (2 * torch.randn(2, 5, 6, generator=generator) for _ in range(4))
    head, empty = 2 * torch.randn(9, 6, generator=generator), torch.empty(0)
    weight = torch.tensor([[0.0, 1.0, 0.5, 0.25, 0.0], [0.0, 0.0, 1.0, 0.0, 2.0]])
    starts = torch.tensor([[True, False, True, False, False], [True, True, False, False, False]])
    prediction, target = Prediction(feature, state, empty), Activations(empty, empty, truth, true_state, empty)
    asked = LossSettings(cross_entropy=0.3, feature=0.8, count_starts=count_starts)
    losses = feature_losses(prediction, target, head, weight, asked, starts)
    teacher, drafter = truth @ head.t(), feature @ head.t()
    pairs = ((feature, truth), (state, true_state))
    errors = [functional.smooth_l1_loss(*pair, reduction="none").mean(-1) for pair in pairs]
    positions = {
        "cross_entropy": -(teacher.softmax(-1) * drafter.log_softmax(-1)).sum(-1),
        "feature": errors[0],
        "state": torch.where(starts, 0.0, errors[1]) * (1.0 if count_starts else weight.sum() / weight[~starts].sum()),
        "agreement": (teacher.argmax(-1) == drafter.argmax(-1)).float(),
    }
    expected = {name: float((weight * each).sum() / weight.sum()) for name, each in positions.items()}
    expected["total"] = 0.3 * expected["cross_entropy"] + 0.4 * (expected["feature"] + expected["state"])
    assert {name: getattr(losses, name).item() for name in expected} == pytest.approx(expected, rel=1e-5)

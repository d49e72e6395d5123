"""EAGLE-2 as the authors of Mixture of Attentions have it: its training form, and whole decoding runs."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from moa_kernels import Cache, Segment
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.drafter.kinds.eagle import BaselineState
from moa_shared.drafting.drafts import Drafter, draft_chain
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree, longest_path
from moa_training.objective.objective import TrainingBaseline, feature_losses
from moa_training.settings import LossSettings
from moa_training.teacher.teacher import Activations

from tests.parity.conftest import Reference

GREEDY = Sampling()


def eagle(reference: Reference) -> Checkpoint:
    llama = reference.manifest["llama_config"]
    config = replace(
        reference.config(0),
        kind="eagle2",
        sa_kv_heads=llama["num_key_value_heads"],
        sa_mlp=llama["intermediate_size"],
    )
    return reference.authors("a_eagle.safetensors", config)


def training_form(reference: Reference) -> tuple[TrainingBaseline, Activations, torch.Tensor]:
    checkpoint = eagle(reference)
    network = TrainingBaseline(checkpoint.config)
    network.load_state_dict(checkpoint.torch_tensors())
    ids = torch.from_numpy(reference.train["input_ids"]).long()
    positions = torch.from_numpy(reference.train["position_ids"]).long()
    hidden = torch.from_numpy(reference.train["target_last_hidden"])
    embeddings = reference.weights["model.embed_tokens.weight"][ids]
    real = torch.from_numpy(reference.train["attention_mask"]).bool()
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril() & (real[:, None, :] | torch.eye(length).bool())
    return network, Activations(embeddings, hidden, hidden, None, positions), causal


def test_the_training_form(reference: Reference) -> None:
    network, target, visible = training_form(reference)
    real = torch.from_numpy(reference.train["attention_mask"]).bool()
    out = network(target, visible).feature.detach()
    theirs = torch.from_numpy(reference.train["eagle_clean.layer_out"])[:, :-1]  # theirs at i is ours at i + 1
    np.testing.assert_allclose(out[:, 1:][real[:, 1:]], theirs[real[:, 1:]], rtol=0, atol=1e-4)


def test_losses_and_gradients(reference: Reference) -> None:
    network, target, visible = training_form(reference)
    record = reference.manifest["training"]["eagle_cases"]["eagle_clean"]
    answers = torch.from_numpy(reference.train["response_mask"]).float()
    weight = answers.clone()
    weight[:, 0] = 0
    losses = feature_losses(
        network(target, visible),
        target,
        reference.weights["lm_head.weight"],
        weight,
        LossSettings(cross_entropy=0.1, feature=1.0),
        torch.zeros_like(weight, dtype=torch.bool),
    )
    assert losses.cross_entropy.item() == pytest.approx(record["losses"]["forward_KL"], abs=1e-5)
    assert losses.feature is not None
    assert losses.feature.item() == pytest.approx(record["losses"]["feature_loss"], abs=1e-5)
    assert losses.total.item() == pytest.approx(record["total_loss"], abs=1e-5)
    losses.total.backward()
    for name, weights in network.named_parameters():
        assert weights.grad is not None
        assert float(weights.grad.norm()) == pytest.approx(record["grad_l2_norms"][name], rel=1e-4)


def run(reference: Reference, mode: str, draft: Callable[[Drafter, int], DraftTree]) -> None:
    """All cycles that the authors recorded, each compared."""
    record = reference.manifest["inference"][f"eagle.{mode}"]
    checkpoint, target = eagle(reference), reference.target()
    state = checkpoint.states(reference.arrays(), "float32")()
    assert isinstance(state, BaselineState)
    cache = target.new_cache()
    tokens: list[int] = reference.infer["prompt_ids"].tolist()
    output = target.forward(cache, tokens)
    state.append_memory(0, output.hidden)
    tokens.append(int(output.logits[-1].argmax()))
    state.extend(tokens)
    for cycle in range(len(record["emitted_per_cycle"])):
        tree = draft(state, cycle)
        root = len(tokens) - 1
        assert [tokens[-1], *tree.tokens] == reference.infer[f"eagle.{mode}.cycle{cycle}.verify_ids"].tolist()
        output = target.forward(cache, [tokens[-1], *tree.tokens], [-1, *(parent + 1 for parent in tree.parents)])
        chosen = output.logits.argmax(-1).tolist()
        path, bonus = longest_path(tree, chosen[0], chosen[1:])
        rows = [0, *(node + 1 for node in path)]
        cache.keep(rows)
        state.append_memory(root, output.hidden[rows])
        new = [*(tree.tokens[node] for node in path), bonus]
        state.extend(new)
        tokens += new
    expected = reference.infer[f"eagle.{mode}.ids"].tolist()
    assert tokens[: len(expected)] == expected == reference.infer["vanilla_ids"].tolist()


def test_chains(reference: Reference) -> None:
    run(reference, "chain", lambda state, _: draft_chain(state, 6, GREEDY))


def test_a_tree_begins_as_theirs_and_below_it_their_nodes_see_one_column_too_far(reference: Reference) -> None:
    """Their mask is that of the other drafter, whose cache has one row more: the first node of a step is seen by all,
    and each sees the next one in place of itself. With that mask the logits are theirs; ours is not that.
    """
    state = eagle(reference).states(reference.arrays(), "float32")()
    assert isinstance(state, BaselineState)
    state.append_memory(0, reference.infer["prefill.target_last_hidden"])
    state.extend([*reference.infer["prompt_ids"].tolist(), int(reference.infer["prefill.target_last_logits"].argmax())])
    first = reference.infer["eagle.tree.cycle0.draft_step0.logits"]
    np.testing.assert_allclose(state.begin(), first, rtol=0, atol=1e-4)
    tokens = reference.infer["eagle.tree.cycle0.expanded_ids"][0].tolist()
    theirs = reference.infer["eagle.tree.cycle0.draft_step1.logits"]
    root = len(state.tokens) - 2

    def as_theirs(cache: Cache) -> Segment:
        before, seen = cache.length, [[0, node + 1] for node in range(7)] + [[0]]
        starts = np.cumsum([0, *map(len, seen)]).astype(np.int32)
        tail = np.array([before + node for row in seen for node in row], np.int32)
        return Segment(cache, before, np.full(8, root + 1, np.int32), np.full(8, before, np.int32), starts, tail)

    out = state._run(tokens, np.broadcast_to(state._newest(), (8, len(state._newest()))), as_theirs)
    np.testing.assert_allclose(state.decoder.logits(out), theirs, rtol=0, atol=1e-4)
    state.begin()
    assert np.abs(state.expand(tokens, [-1] * 8) - theirs).max() > 0.1

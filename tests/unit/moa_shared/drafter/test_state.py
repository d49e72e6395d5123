"""What a conversation's drafter holds: memory in any order, drafts thrown away, conversations cut back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_shared.drafter import DraftDecoder, DraftState, fresh_tensors
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.errors import InternalError, ProtocolError
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.moa_shared.drafter.test_checkpoint import CONFIG

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


Rows = npt.NDArray[np.float32]


def normal(*shape: int, seed: int) -> Rows:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def make_decoder(reused_layers: int = 0, dtype: torch.dtype = torch.float32) -> DraftDecoder:
    import dataclasses

    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=30,
            hidden_size=16,
            intermediate_size=20,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            max_position_embeddings=64,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).requires_grad_(False)
    config = dataclasses.replace(CONFIG, reused_layers=reused_layers)
    embeddings = torch.randn(30, 16, generator=torch.Generator().manual_seed(7))
    embeddings = embeddings if dtype is torch.int8 else embeddings.to(dtype)
    return Checkpoint(config, fresh_tensors(config, seed=4), "").decoder(
        dtype, embeddings, embeddings, list(model.model.layers[4 - reused_layers :]), model.model.norm
    )


ROWS = normal(7, CONFIG.memory_width, seed=8)
STATES = normal(7, 16, seed=9)


def filled(decoder: DraftDecoder) -> DraftState:
    state = DraftState(decoder)
    state.extend(TOKENS)
    state.append_memory(0, ROWS)
    state.append_reused_state(0, STATES)
    return state


def close(a: Rows | torch.Tensor, b: Rows | torch.Tensor) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def distance(a: Rows, b: Rows) -> float:
    """Of `a` from `b`, relative to `b`."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


@pytest.mark.parametrize("reused_layers", [0, 2])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_memory_may_come_in_any_order_and_twice(reused_layers: int, data: st.DataObject) -> None:
    decoder = DECODERS[reused_layers]
    state = DraftState(decoder)
    state.extend(TOKENS[:5])
    spans = data.draw(st.permutations([(0, 2), (2, 5), (4, 7), (5, 7), (1, 3)]))
    for start, stop in spans:
        state.append_memory(start, ROWS[start:stop])
        state.append_reused_state(start, STATES[start:stop])
        state.begin()  # a draft on what there is, thrown away
        state.expand([2], [-1])
    state.extend(TOKENS[5:])
    close(state.begin(), filled(decoder).begin())


@pytest.mark.parametrize("reused_layers", [0, 2])
def test_a_tree_row_sees_its_own_ancestors_alone(reused_layers: int) -> None:
    decoder = DECODERS[reused_layers]
    tree = filled(decoder)
    tree.begin()
    first = tree.expand([7, 8], [-1, -1])
    second = tree.expand([9, 10, 11], [1, 0, 1])
    for path, logits in (
        ([7], first[0]),
        ([8], first[1]),
        ([8, 9], second[0]),
        ([7, 10], second[1]),
        ([8, 11], second[2]),
    ):
        chain = filled(decoder)
        chain.begin()
        alone = np.empty((0, 0))
        for step, token in enumerate(path):
            alone = chain.expand([token], [step - 1])
        close(logits, alone[0])


@pytest.mark.parametrize("reused_layers", [0, 2])
def test_a_conversation_cut_back_is_as_one_that_never_went_on(reused_layers: int) -> None:
    decoder = DECODERS[reused_layers]
    state = filled(decoder)
    state.begin()
    state.expand([7, 8], [-1, -1])
    state.crop(4)
    fresh = DraftState(decoder)
    fresh.extend(TOKENS[:4])
    fresh.append_memory(0, ROWS[:4])
    fresh.append_reused_state(0, STATES[:4])
    state.extend([11])
    fresh.extend([11])
    close(state.begin(), fresh.begin())


@pytest.mark.parametrize("reused_layers", [0, 2])
@pytest.mark.parametrize("known", [2, 5])
def test_old_memory_is_drafted_on_as_by_a_longer_draft(reused_layers: int, known: int) -> None:
    """Committed tokens whose memory has not come are predicted over, exactly as the nodes of a chain would be."""
    decoder = DECODERS[reused_layers]
    old, chain = DraftState(decoder), DraftState(decoder)
    for state, tokens in ((old, TOKENS), (chain, TOKENS[: known + 1])):
        state.extend(tokens)
        state.append_memory(0, ROWS[:known])
        state.append_reused_state(0, STATES[:known])
    drafted = chain.begin()
    for step, token in enumerate(TOKENS[known + 1 :]):
        drafted = chain.expand([token], [step - 1])
    close(old.begin(), drafted)
    old.append_memory(known, ROWS[known:])
    old.append_reused_state(known, STATES[known:])
    close(old.begin(), filled(decoder).begin())


@pytest.mark.parametrize("reused_layers", [0, 2])
def test_drafts_in_bfloat16_are_near_those_in_float32(reused_layers: int) -> None:
    low, high = filled(make_decoder(reused_layers, torch.bfloat16)), filled(DECODERS[reused_layers])
    for state in (low, high):
        state.begin()
    ours, theirs = (state.expand([7, 8], [-1, -1]) for state in (low, high))
    assert distance(ours, theirs) < 0.03


def test_a_drafter_without_memory_still_drafts() -> None:
    state = DraftState(DECODERS[0])
    state.extend([1])
    assert state.begin().shape == (1, 30)
    assert state.memory_rows == 0


def test_rows_of_another_width_and_empty_conversations_are_refused() -> None:
    state = DraftState(DECODERS[2])
    with pytest.raises(InternalError, match="before there was any token"):
        state.begin()
    with pytest.raises(ProtocolError, match=f"memory rows of {CONFIG.memory_width} numbers, got 3"):
        state.append_memory(0, np.zeros((1, 3), np.float32))
    with pytest.raises(ProtocolError, match="state rows of 16 numbers, got 3"):
        state.append_reused_state(0, np.zeros((1, 3), np.float32))


class Model:
    """What a state should hold, to compare with one that is filled anew."""

    def __init__(self, decoder: DraftDecoder) -> None:
        self.decoder = decoder
        self.tokens = [3, 1]
        self.memory = 1  # without any state a new draft predicts nothing before its root
        self.nodes: list[tuple[int, int]] = []

    def path(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            token, node = self.nodes[node]
            path.insert(0, token)
        return path

    def logits(self, node: int) -> Rows:
        fresh = DraftState(self.decoder)
        fresh.extend(self.tokens)
        fresh.append_memory(0, ROWS[: self.memory])
        fresh.append_reused_state(0, STATES[: self.memory])
        logits = fresh.begin()
        for step, token in enumerate(self.path(node)):
            logits = fresh.expand([token], [step - 1])
        return logits[0]


@pytest.mark.parametrize("reused_layers", [0, 2])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_draft_pruned_and_gone_on_with_is_as_a_new_one(reused_layers: int, data: st.DataObject) -> None:
    """Commits along the draft, off it and back, in any order, change nothing of what the draft says."""
    decoder = DECODERS[reused_layers]
    state, model = DraftState(decoder), Model(decoder)
    state.extend(model.tokens)
    state.append_memory(0, ROWS[:1])
    state.append_reused_state(0, STATES[:1])
    begun = False
    for _ in range(data.draw(st.integers(2, 12))):
        action = data.draw(st.sampled_from(["expand", "expand", "along", "off", "crop", "memory"]))
        if not begun:
            close(state.begin()[0], model.logits(-1))
            begun, model.nodes = True, []
        if action == "expand":
            count = data.draw(st.integers(1, 3))
            parents = [data.draw(st.integers(-1, len(model.nodes) - 1)) for _ in range(count)]
            tokens = [len(model.nodes) + index for index in range(count)]  # siblings differ
            model.nodes += zip(tokens, parents, strict=True)
            logits = state.expand(tokens, parents)
            for index in range(count):
                close(logits[index], model.logits(len(model.nodes) - count + index))
        elif action == "along" and model.nodes:
            node = data.draw(st.integers(0, len(model.nodes) - 1))
            path, below = model.path(node), {node: -1}
            for other, (_, parent) in enumerate(model.nodes):
                if parent in below:
                    below[other] = len(below) - 1
            kept = state.extend(path)
            assert kept == tuple(list(below)[1:])
            model.tokens += path
            model.nodes = [(model.nodes[other][0], below[model.nodes[other][1]]) for other in kept]
        elif action == "off":
            path = model.path(data.draw(st.integers(-1, len(model.nodes) - 1)))
            assert state.extend([*path, 29]) is None
            model.tokens += [*path, 29]
            begun = False
        elif action == "crop":
            length = data.draw(st.integers(2, len(model.tokens)))
            state.crop(length)
            del model.tokens[length:]
            model.memory = min(model.memory, length)
            begun = False
        elif action == "memory":
            stop = min(len(model.tokens) - 1, len(ROWS), model.memory + 2)
            if stop > model.memory:
                state.append_memory(model.memory, ROWS[model.memory : stop])
                state.append_reused_state(model.memory, STATES[model.memory : stop])
                model.memory = stop
                begun = False  # what is computed already stays as it was


@pytest.mark.parametrize("known", [(0, 3), (2, 5), (0, 0)])
def test_states_that_come_during_a_draft_take_the_predictions_places(known: tuple[int, int]) -> None:
    """Keys and values of the reused layers are those of the states where they have come, once each."""
    decoder = DECODERS[2]
    state = DraftState(decoder)
    state.extend(TOKENS[:6])
    state.append_memory(0, ROWS)
    state.append_reused_state(known[0], STATES[known[0] : known[1]])
    state.begin()
    for step, token in enumerate(TOKENS[6:]):
        state.expand([token], [step - 1])
    assert state.extend(TOKENS[6:]) == ()
    state.append_reused_state(0, STATES)
    late = state.expand([11], [-1])
    fresh = filled(decoder)
    fresh.begin()
    # The newest committed token's own row was predicted from older rows: near, not equal.
    assert distance(fresh.expand([11], [-1]), late) < 0.05
    reused, other = state._reused, fresh._reused
    assert reused is not None
    assert other is not None
    for mine, theirs in zip(reused._caches, other._caches, strict=True):
        for ours, expected in zip(mine.keys_values, theirs.keys_values, strict=True):
            assert ours.shape == expected.shape
            close(ours[:, :7], expected[:, :7])


def test_a_long_chain_holds_no_masks_and_is_as_a_short_one_read_anew() -> None:
    decoder = DECODERS[2]
    state, fresh = filled(decoder), filled(decoder)
    state.begin()
    logits = np.empty((0, 0))
    text = [node % 30 for node in range(600)]
    for node, token in enumerate(text):
        logits = state.expand([token], [node - 1])
    assert state._nodes.is_chain
    fresh.extend(text)
    close(fresh.begin(), logits)


def test_a_long_conversation_can_be_cut_back() -> None:
    decoder = DECODERS[2]
    state, fresh = DraftState(decoder), DraftState(decoder)
    rows = normal(600, CONFIG.memory_width, seed=2)
    states = normal(600, 16, seed=3)
    text = [place % 30 for place in range(600)]
    for one, length in ((state, 600), (fresh, 301)):
        one.extend(text[:length])
        one.append_memory(0, rows[: length - 1])
        one.append_reused_state(0, states[: length - 1])
        one.begin()
        one.expand([1, 2], [-1, -1])
        one.extend([2])
    state.crop(300)
    fresh.crop(300)
    close(state.begin(), fresh.begin())


def test_nodes_without_a_draft_are_refused() -> None:
    state = filled(DECODERS[0])
    with pytest.raises(InternalError, match="before a draft was begun"):
        state.expand([1], [-1])


DECODERS = {reused_layers: make_decoder(reused_layers) for reused_layers in (0, 2)}

"""What a conversation's drafter holds: memory in any order, drafts thrown away, conversations cut back."""

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_kernels.library import library
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState, ReusedLayers
from moa_shared.drafter.kinds.state import run_of_text
from moa_shared.drafter.kinds.weights import ArrayWeights

from tests.support.decoders import EVEN, ODD, Rows, decoder_of, normal, target_arrays
from tests.support.skipping import examples

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


CONFIGS = {"numpy": ODD, "float32": EVEN, "int8": EVEN}
KINDS = tuple(CONFIGS)
WIDE = ("numpy", "float32")  # computed in float32


@cache
def make_decoder(reused_layers: int, kind: str) -> DraftDecoder:
    config = dataclasses.replace(CONFIGS[kind], reused_layers=reused_layers)
    checkpoint = Checkpoint(config, fresh_tensors(config, seed=4), "")
    return decoder_of(checkpoint, ArrayWeights(target_arrays(config)), "float32" if kind == "numpy" else kind)


def close(a: Rows, b: Rows) -> None:
    np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def same(decoder: DraftDecoder, a: Rows, b: Rows) -> None:
    """To the bit where the kernels compute; numpy's sums depend on what is computed together."""
    if decoder.arithmetic.in_numpy or library() is None:
        close(a, b)
    else:
        np.testing.assert_array_equal(a, b)


def distance(a: Rows, b: Rows) -> float:
    """Of `a` from `b`, relative to `b`."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def memory_rows(decoder: DraftDecoder) -> Rows:
    return normal(7, decoder.config.memory_width, seed=8)


def states_of(decoder: DraftDecoder) -> Rows:
    return normal(7, decoder.config.hidden_size, seed=9)


def filled(decoder: DraftDecoder, tokens: list[int] = TOKENS, known: int = 7) -> DraftState:
    """A conversation whose memory and states have come for the first `known` tokens."""
    state = DraftState(decoder)
    state.extend(tokens)
    state.append_memory(0, memory_rows(decoder)[:known])
    state.append_reused_state(0, states_of(decoder)[:known])
    return state


@pytest.mark.parametrize("kind", WIDE)
@pytest.mark.parametrize("reused_layers", [0, 2])
@settings(max_examples=examples(30))
@given(data=st.data())
def test_memory_may_come_in_any_order_and_twice(reused_layers: int, kind: str, data: st.DataObject) -> None:
    decoder = make_decoder(reused_layers, kind)
    state = DraftState(decoder)
    state.extend(TOKENS[:5])
    spans = data.draw(st.permutations([(0, 2), (2, 5), (4, 7), (5, 7), (1, 3)]))
    for start, stop in spans:
        state.append_memory(start, memory_rows(decoder)[start:stop])
        state.append_reused_state(start, states_of(decoder)[start:stop])
        state.begin()  # a draft on what there is, thrown away
        state.expand([2], [-1])
    state.extend(TOKENS[5:])
    close(state.begin(), filled(decoder).begin())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reused_layers", [0, 2])
@pytest.mark.parametrize("known", [2, 5])
def test_old_memory_is_drafted_on_as_by_a_longer_draft(reused_layers: int, kind: str, known: int) -> None:
    """Committed tokens whose memory has not come are predicted over, exactly as the nodes of a chain would be."""
    decoder = make_decoder(reused_layers, kind)
    old, chain = filled(decoder, TOKENS, known), filled(decoder, TOKENS[: known + 1], known)
    drafted = chain.begin()
    for step, token in enumerate(TOKENS[known + 1 :]):
        drafted = chain.expand([token], [step - 1])
    same(decoder, old.begin(), drafted)
    old.append_memory(known, memory_rows(decoder)[known:])
    old.append_reused_state(known, states_of(decoder)[known:])
    same(decoder, old.begin(), filled(decoder).begin())


class Model:
    """What a state should hold, to compare with one that is filled from the start."""

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
        fresh = filled(self.decoder, self.tokens, self.memory)
        logits = fresh.begin()
        for step, token in enumerate(self.path(node)):
            logits = fresh.expand([token], [step - 1])
        newest: Rows = logits[0]
        return newest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reused_layers", [0, 2])
@settings(max_examples=examples(40))
@given(data=st.data())
def test_a_draft_pruned_and_gone_on_with_is_as_a_new_one(reused_layers: int, kind: str, data: st.DataObject) -> None:
    """Commits along the draft, off it and back, in any order, change nothing of what the draft says."""
    decoder = make_decoder(reused_layers, kind)
    model, rows, states = Model(decoder), memory_rows(decoder), states_of(decoder)
    state = filled(decoder, model.tokens, 1)
    begun = False
    for _ in range(data.draw(st.integers(2, 12))):
        action = data.draw(st.sampled_from(["expand", "expand", "along", "off", "crop", "memory"]))
        if not begun:
            same(decoder, state.begin()[0], model.logits(-1))
            begun, model.nodes = True, []
        unused = sorted(set(range(29)) - {token for token, _ in model.nodes})
        if action == "expand" and unused:
            tokens = unused[: data.draw(st.integers(1, 3))]  # siblings differ, also after some were pruned
            count = len(tokens)
            parents = [data.draw(st.integers(-1, len(model.nodes) - 1)) for _ in range(count)]
            model.nodes += zip(tokens, parents, strict=True)
            logits = state.expand(tokens, parents)
            for index in range(count):
                same(decoder, logits[index], model.logits(len(model.nodes) - count + index))
        elif action == "along" and model.nodes:
            node = data.draw(st.integers(0, len(model.nodes) - 1))
            path, below = model.path(node), {node: -1}
            for other, (_, parent) in enumerate(model.nodes):
                if parent in below:
                    below[other] = len(below) - 1
            kept = state.extend(path)
            assert kept == tuple(list(below)[1:])
            if model.memory == len(model.tokens):  # cut back to a token whose state is known: it takes the place of
                begun = False  # the root's own prediction, and what was computed from that stays as it was
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
            stop = min(len(model.tokens) - 1, len(rows), model.memory + 2)
            if stop > model.memory:
                state.append_memory(model.memory, rows[model.memory : stop])
                state.append_reused_state(model.memory, states[model.memory : stop])
                model.memory = stop
                begun = False  # what is computed already stays as it was


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("known", [(0, 3), (2, 5), (0, 0)])
def test_states_that_come_during_a_draft_take_the_predictions_places(known: tuple[int, int], kind: str) -> None:
    """Keys and values of the reused layers are those of the states where they have come, once each."""
    decoder = make_decoder(2, kind)
    state = DraftState(decoder)
    state.extend(TOKENS[:6])
    state.append_memory(0, memory_rows(decoder))
    state.append_reused_state(known[0], states_of(decoder)[known[0] : known[1]])
    state.begin()
    for step, token in enumerate(TOKENS[6:]):
        state.expand([token], [step - 1])
    assert state.extend(TOKENS[6:]) == ()
    state.append_reused_state(0, states_of(decoder))
    late = state.expand([11], [-1])
    fresh = filled(decoder)
    fresh.begin()
    # The newest committed token's own row was predicted from older rows: near, not equal.
    assert distance(fresh.expand([11], [-1]), late) < 0.05
    reused, other = state._reused, fresh._reused
    assert reused is not None
    assert other is not None
    assert reused._cache.length == other._cache.length
    same(decoder, reused._cache.read(0, 7), other._cache.read(0, 7))


@pytest.mark.parametrize("kind", ["numpy", "float32"])
def test_long_runs_in_batches_are_as_in_one(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    logits: list[Rows] = []
    decoder = make_decoder(2, kind)
    states = normal(40, decoder.config.hidden_size, seed=5)
    for batch in (40, 7):
        monkeypatch.setattr("moa_shared.drafter.kinds.state._BATCH", batch)
        state = DraftState(decoder)
        state.extend([1] * (40 + 1))
        state.append_reused_state(0, states)
        logits.append(state.begin())
    close(logits[0], logits[1])


@pytest.mark.parametrize("kind", ["numpy", "float32"])
def test_what_is_cut_back_may_come_again_and_be_another(kind: str) -> None:
    """A text that was cut back and written again is as if it had come at once."""
    decoder = make_decoder(1, kind)
    before, after = (normal(40, decoder.config.hidden_size, seed=seed) for seed in (1, 2))
    assert decoder.reused is not None
    at_once, cut = (ReusedLayers(decoder.reused, kv=decoder.arithmetic.kv) for _ in range(2))
    at_once.add(0, np.concatenate((before[:20], after[20:])))
    cut.add(0, before[:30])
    cut.catch_up(30)
    cut.add(30, before[30:])
    cut.crop(20)
    cut.add(0, after[:25])  # held ones are passed over
    cut.add(25, after[25:])
    assert at_once.catch_up(40) == cut.catch_up(40) == 40
    theirs, ours = (each.run(before[:1], run_of_text(range(40, 41))) for each in (at_once, cut))
    close(ours, theirs)


def test_the_authors_lost_scaling_concerns_memory_alone() -> None:
    plain = dataclasses.replace(EVEN, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    scaled = dataclasses.replace(EVEN, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0})
    unscaled = dataclasses.replace(scaled, unscaled_memory_rope=True)
    kv, own = normal(5, 4, EVEN.kv_width, seed=2), ArrayWeights(target_arrays(EVEN))
    made = [Checkpoint(config, fresh_tensors(config, seed=0), "") for config in (plain, scaled, unscaled)]
    rows = [checkpoint.rows("float32")(kv) for checkpoint in made]
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    stacks = [decoder_of(checkpoint, own, "float32") for checkpoint in made]
    for part, alike in (("cross_attention", (0, 2)), ("self_attention", (1, 2))):
        first, second = (getattr(stacks[at], part).rotary.tables(30)[0] for at in alike)
        assert np.array_equal(first, second)

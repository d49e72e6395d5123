"""What a conversation's drafter holds: memory in any order, drafts thrown away, conversations cut back."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState

from tests.support import decoders
from tests.support.counted import CountedList
from tests.support.decoders import KINDS, WIDE, Rows, close, distance, normal, same
from tests.support.skipping import examples

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


@cache
def make_decoder(reused_layers: int, kind: str) -> DraftDecoder:
    return decoders.make_decoder(reused_layers, kind)


def memory_rows(decoder: DraftDecoder) -> Rows:
    return normal(7, decoder.config.memory_width, seed=8)


def states_of(decoder: DraftDecoder) -> Rows:
    return normal(7, decoder.config.hidden_size, seed=9)


def filled(decoder: DraftDecoder) -> DraftState:
    state = DraftState(decoder)
    state.extend(TOKENS)
    state.append_memory(0, memory_rows(decoder))
    state.append_reused_state(0, states_of(decoder))
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
    old, chain = DraftState(decoder), DraftState(decoder)
    for state, tokens in ((old, TOKENS), (chain, TOKENS[: known + 1])):
        state.extend(tokens)
        state.append_memory(0, memory_rows(decoder)[:known])
        state.append_reused_state(0, states_of(decoder)[:known])
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
        fresh = DraftState(self.decoder)
        fresh.extend(self.tokens)
        fresh.append_memory(0, memory_rows(self.decoder)[: self.memory])
        fresh.append_reused_state(0, states_of(self.decoder)[: self.memory])
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
    state, model = DraftState(decoder), Model(decoder)
    state.extend(model.tokens)
    rows, states = memory_rows(decoder), states_of(decoder)
    state.append_memory(0, rows[:1])
    state.append_reused_state(0, states[:1])
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


def test_a_long_chain_holds_no_tails_and_is_as_a_short_one_read_again() -> None:
    decoder = make_decoder(2, "float32")
    state, fresh = filled(decoder), filled(decoder)
    state.begin()
    logits = np.empty((0, 0), np.float32)
    text = [node % 30 for node in range(600)]
    for node, token in enumerate(text):
        logits = state.expand([token], [node - 1])
    assert state._nodes.is_chain
    fresh.extend(text)
    same(decoder, fresh.begin(), logits)


def test_taking_memory_in_does_not_look_at_what_has_come_before() -> None:
    decoder = make_decoder(0, WIDE[0])
    state = DraftState(decoder)
    rows = memory_rows(decoder)
    for start in range(0, 700, 7):
        state.append_memory(start, rows)
    assert state._memory is not None
    state._memory._positions = counted = CountedList(state._memory._positions)
    state.append_memory(699, rows)
    assert counted.read == 0
    assert state.memory_rows == 706

"""A companion's state says what the model itself says of the same text, however text and drafts came."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moa_kernels import F32, Segment
from moa_shared.drafter.kinds.companion import CompanionState
from moa_shared.models.network.network import Network

from tests.support.decoders import Rows
from tests.support.properties import examples
from tests.support.tiny_models import SIZES, ModelWeights, tiny_model

VOCAB = SIZES["vocab_size"]
MODEL = tiny_model()
NETWORK = Network(ModelWeights(MODEL), MODEL.config, plain=True)
PROMPT = [5, 17, 42, 8, 17, 42]


def state(columns: int = VOCAB) -> CompanionState:
    return CompanionState(NETWORK, columns, kv=F32)


def said(tokens: list[int]) -> Rows:
    """The model's own logits after a text."""
    segment = Segment.chain(NETWORK.new_cache(kv=F32), len(tokens))
    logits: Rows = NETWORK.forward(tokens, [segment], [len(tokens) - 1]).logits[0]
    return logits


def close(ours: Rows, tokens: list[int]) -> None:
    np.testing.assert_allclose(ours, said(tokens), atol=2e-5)


@settings(max_examples=examples(30))
@given(data=st.data())
def test_text_read_ahead_cut_back_and_drafted_below_is_as_text_read_at_once(data: st.DataObject) -> None:
    companion, text, nodes = state(), list(PROMPT), list[tuple[int, int]]()
    companion.extend(text)
    begun = False
    for _ in range(data.draw(st.integers(3, 12))):
        action = data.draw(st.sampled_from(["read", "begin", "expand", "expand", "along", "off", "crop"]))
        if action == "read":
            before = companion.unread
            companion.read(most := data.draw(st.integers(1, 4)))
            assert companion.unread == max(0, before - most)
        elif action == "begin" or (action in ("expand", "along") and not begun):
            close(companion.begin()[0], text)
            begun, nodes = True, []
        elif action == "expand":
            parents = data.draw(st.lists(st.integers(-1, len(nodes) - 1), min_size=1, max_size=3))
            added = [(10 + len(nodes) + index, parent) for index, parent in enumerate(parents)]
            for logits, node in zip(companion.expand(*zip(*added, strict=True)), added, strict=True):
                close(logits, text + path(nodes, node[1]) + [node[0]])
            nodes += added
        elif action == "along" and nodes:
            text += (taken := path(nodes, data.draw(st.integers(0, len(nodes) - 1))))
            kept = companion.extend(taken)
            assert kept is not None
            assert [path(nodes, node)[: len(taken)] for node in kept] == [taken] * len(kept)
            number = {former: now for now, former in enumerate(kept)}
            nodes = [(nodes[node][0], number.get(nodes[node][1], -1)) for node in kept]
        elif action == "off":
            text.append(90)
            assert companion.extend([90]) is None
            begun = False
        elif action == "crop":
            del text[data.draw(st.integers(1, len(text))) :]
            companion.crop(len(text))
            begun = False
    close(companion.begin()[0], text)


def path(nodes: list[tuple[int, int]], node: int) -> list[int]:
    return [] if node < 0 else [*path(nodes, nodes[node][1]), nodes[node][0]]


def test_it_says_nothing_that_the_target_lacks_and_reads_what_it_lacks_itself() -> None:
    companion = state(columns=40)
    companion.extend([*PROMPT, VOCAB + 7])
    assert companion.begin().shape == (1, 40)
    assert companion.expand([3], [-1]).shape == (1, 40)
    assert state(columns=VOCAB + 30).columns == VOCAB


def test_while_it_reads_it_can_say_what_it_would_have_said() -> None:
    companion, text = state(), [5, 17, 42, 8]
    text.append(int(said(text).argmax()))  # its own choice, then others
    text += [(text[-1] + 1) % VOCAB, 8, 9]
    companion.extend(text)
    asked = companion.read(6, 3)
    assert [each.position for each in asked] == [1, 4]
    for each in asked:
        logits = said(text[: each.position])
        chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        assert each.chance == pytest.approx(float(chances.max()), abs=1e-5)
        assert each.is_chosen == (text[each.position] == int(logits.argmax()))
    assert asked[1].is_chosen
    assert companion.read(10) == []  # not asked
    assert companion.read(10, 1) == []  # nothing is left to read

"""Filled and recorded forwards against plain ones, and random conversations against transformers' own forward."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_server.verifier import KVCache, Request
from moa_server.verifier.attention import MOST_GRAPH_ROWS, Record, Run, States
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.tree import path_to

from tests.support.skipping import examples
from tests.support.torch_models import torch_model
from tests.unit.moa_server.verifier.paged_targets import ATTENTIONS, paged_target, played_again

pytestmark = pytest.mark.torch

CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-5}
PREFIX = [5, 17, 3, 88, 41, 41, 2]


class Conversations:
    """Texts with their caches, and transformers' own forward over each."""

    def __init__(self, target: TorchTarget, count: int) -> None:
        self.model, self.target = torch_model(), target
        self.caches: list[KVCache] = [target.new_cache() for _ in range(count)]
        self.texts: list[list[int]] = [[] for _ in range(count)]

    @torch.no_grad()
    def bare(self, tokens: list[int]) -> np.ndarray:
        logits: np.ndarray = self.model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        return logits

    def step(self, rows: dict[int, tuple[list[int], list[int] | None, list[int]]]) -> None:
        """One forward of some of them; for each: tokens, parents, the path that is kept."""
        outputs = self.target.forward_all(
            [
                Request(self.caches[which], tokens, parents, range(len(tokens)))
                for which, (tokens, parents, _) in rows.items()
            ]
        )
        for (which, (tokens, parents, path)), output in zip(rows.items(), outputs, strict=True):
            for node in range(len(tokens)):
                line = path_to(parents, node) if parents is not None else range(node + 1)
                expected = self.bare([*self.texts[which], *(tokens[place] for place in line)])[-1]
                np.testing.assert_allclose(output.logits[node], expected, **CLOSE)
            self.caches[which].keep(path)
            self.texts[which] += [tokens[place] for place in path]


@pytest.mark.parametrize("attention", ATTENTIONS)
@given(data=st.data())
@settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))
def test_any_conversations_in_any_forwards(attention: str, data: st.DataObject) -> None:
    all_of = Conversations(paged_target(torch_model(), attention), 3)
    for _ in range(4):
        rows = {}
        for which in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True)):
            if data.draw(st.integers(0, 5)) == 0:
                length = data.draw(st.integers(0, len(all_of.texts[which])))
                all_of.caches[which].crop(length)
                del all_of.texts[which][length:]
            tokens = data.draw(st.lists(st.integers(0, 96), min_size=1, max_size=9))
            parents = None
            if data.draw(st.booleans()):
                parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
            tree = parents or list(range(-1, len(tokens) - 1))
            rows[which] = (tokens, parents, path_to(tree, data.draw(st.integers(-1, len(tokens) - 1))))
        all_of.step(rows)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_pages_of_a_released_conversation_serve_the_next(attention: str) -> None:
    """What they held before is seen by nobody."""
    target = paged_target(torch_model(), attention)
    for text in ([9] * 90, PREFIX):
        all_of = Conversations(target, 1)
        all_of.step({0: (text, None, list(range(len(text))))})
        all_of.step({0: ([4, 8, 15], [-1, 0, 0], [0, 2])})
        all_of.step({0: ([16], None, [0])})
        all_of.caches[0].release()


def test_rows_that_fill_change_nothing_of_the_others() -> None:
    plain, filled = TorchTarget(torch_model()), paged_target(torch_model(), "flashinfer")
    caches = [plain.new_cache(), filled.new_cache()]
    for tokens, parents in ((PREFIX, None), ([3, 1, 4, 1, 5], [-1, 0, 0, 1, 2])):
        rows = [0, len(tokens) - 1, 2]
        outputs = [
            target.forward(cache, tokens, parents, rows, 1)
            for target, cache in zip((plain, filled), caches, strict=True)
        ]
        assert outputs[0].state is not None
        assert outputs[1].state is not None
        assert outputs[1].state.shape == (len(tokens), 64)
        assert outputs[1].logits.shape == (3, 97)
        np.testing.assert_allclose(outputs[0].logits, outputs[1].logits, **CLOSE)
        np.testing.assert_allclose(outputs[0].state, outputs[1].state, **CLOSE)
    np.testing.assert_allclose(caches[0].lsa_input(0, 12), caches[1].lsa_input(0, 12), **CLOSE)


def counted(records: list[int]) -> Record:
    inner = played_again()

    def record(run: Run) -> tuple[Callable[[], None], States]:
        play, states = inner(run)
        records.append(len(states.last))
        return play, states

    return record


def test_a_graph_is_recorded_once_for_each_number_of_rows() -> None:
    records: list[int] = []
    model = torch_model(max_position_embeddings=2 * MOST_GRAPH_ROWS)
    target = paged_target(model, "flashinfer", record=counted(records))
    cache = target.new_cache()
    for count in (3, 4, 1, 3, 1, 2):
        target.forward(cache, [7] * count)
    assert records == [4, 1, 2]
    for layer in (2, 0):
        target.forward(cache, [7], want_state_layer=layer)
    assert records == [4, 1, 2]
    target.forward(target.new_cache(), [7] * (MOST_GRAPH_ROWS + 1))
    assert records == [4, 1, 2]

"""Attention over pages against the formula, and forwards of random conversations, filled and recorded ones too."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_server.verifier import KVCache, Request
from moa_server.verifier.attention import MOST_GRAPH_ROWS, Attention, RunLayers, States
from moa_server.verifier.pool import PAGE_ROWS, Batch, BatchPart, PagePool, lay_out
from moa_server.verifier.torch_target import TorchTarget
from moa_shared.tree import path_to

from tests.support.skipping import examples
from tests.support.torch_models import bare, torch_model
from tests.unit.moa_server.verifier.paged_targets import ATTENTIONS, fake_flashinfer, paged_target, played_again

pytestmark = pytest.mark.torch

HEADS, KV_HEADS, HEAD_DIM, PAGES = 6, 2, 16, 12
ROWS = 128  # that a filled batch has


@pytest.fixture(autouse=True)
def _libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flashinfer", fake_flashinfer())


def over_pages(name: str) -> tuple[Attention, PagePool]:
    """A library's attention over a pool of random numbers."""
    nbytes = PAGES * PAGE_ROWS * KV_HEADS * HEAD_DIM * 2 * 4
    pool = PagePool(1, KV_HEADS, HEAD_DIM, nbytes, torch.float32, torch.device("cpu"))
    attention = ATTENTIONS[name](pool, HEADS)
    pool.tensor.copy_(torch.randn(pool.tensor.shape, generator=torch.Generator().manual_seed(5)))
    return attention, pool


@st.composite
def batches(draw: st.DrawFn) -> list[BatchPart]:
    """Up to four conversations with pages in any order; trees, chains and single rows."""
    free = draw(st.permutations(range(1, PAGES + 1)))
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        prefix, count = draw(st.integers(0, 2 * PAGE_ROWS - 20)), draw(st.integers(1, 20))
        parents = [draw(st.integers(-1, node - 1)) for node in range(count)] if draw(st.booleans()) else None
        needed = -(-(prefix + count) // PAGE_ROWS) + draw(st.integers(0, 1))  # a page may be held in advance
        pages, free = free[:needed], free[needed:]
        parts.append(BatchPart([1] * count, [0] * count, prefix, pages, parents))
    return parts


def expected(pool: PagePool, batch: Batch, queries: torch.Tensor) -> torch.Tensor:
    """Softmax attention of one row after the other, in float64."""
    keys, values = (pages.flatten(0, 1).double().numpy() for pages in pool.keys_values(0))
    out = np.zeros(queries.shape)
    row = 0
    for part in batch.parts:
        for seen in part.seen():
            places = [*range(part.prefix), *(part.prefix + np.flatnonzero(seen))]
            slots = [part.pages[place // PAGE_ROWS] * PAGE_ROWS + place % PAGE_ROWS for place in places]
            for head in range(HEADS):
                of_head = head // (HEADS // KV_HEADS)
                scores = keys[slots, of_head] @ queries[row, head].double().numpy() * HEAD_DIM**-0.5
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[slots, of_head]
            row += 1
    return torch.from_numpy(out).float()


@pytest.mark.parametrize("name", ATTENTIONS)
@given(parts=batches(), filled=st.booleans(), seed=st.integers(0, 9))
@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_batch_gives_what_the_formula_gives(name: str, parts: list[BatchPart], filled: bool, seed: int) -> None:
    attention, pool = over_pages(name)
    batch = lay_out(parts, ROWS if filled else 0)
    queries = torch.randn(batch.rows, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(seed))
    plan = attention.for_graph(batch.rows, 3) if filled else attention
    plan.load(batch)
    torch.testing.assert_close(plan.attend(0, queries), expected(pool, batch, queries), atol=1e-5, rtol=1e-5)


CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-5}


class Conversations:
    """Texts with their caches, and transformers' own forward over each."""

    def __init__(self, target: TorchTarget, count: int) -> None:
        self.model, self.target = torch_model(), target
        self.caches: list[KVCache] = [target.new_cache() for _ in range(count)]
        self.texts: list[list[int]] = [[] for _ in range(count)]

    def step(self, rows: dict[int, tuple[list[int], list[int] | None, list[int]]]) -> None:
        """One forward of some of them; for each: tokens, parents, the path that is kept."""
        requests = [Request(self.caches[at], own, parents, range(len(own))) for at, (own, parents, _) in rows.items()]
        outputs = self.target.forward_all(requests)
        for (which, (tokens, parents, path)), output in zip(rows.items(), outputs, strict=True):
            for node in range(len(tokens)):
                line = path_to(parents, node) if parents is not None else range(node + 1)
                expected = bare(self.model, [*self.texts[which], *(tokens[place] for place in line)])[-1]
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
            if data.draw(st.integers(0, 3)) == 0:
                length = data.draw(st.integers(0, len(all_of.texts[which])))
                cache = all_of.caches[which]
                cache.crop(length) if length else cache.release()  # whose pages serve the next one
                del all_of.texts[which][length:]
            tokens = data.draw(st.lists(st.integers(0, 96), min_size=1, max_size=9))
            parents = None
            if data.draw(st.booleans()):
                parents = [data.draw(st.integers(-1, node - 1)) for node in range(len(tokens))]
            tree = parents or list(range(-1, len(tokens) - 1))
            rows[which] = (tokens, parents, path_to(tree, data.draw(st.integers(-1, len(tokens) - 1))))
        all_of.step(rows)


def test_a_graph_is_recorded_once_for_each_number_of_rows() -> None:
    records: list[int] = []

    def record(run: RunLayers) -> tuple[Callable[[], None], States]:
        play, states = played_again()(run)
        records.append(len(states.last))
        return play, states

    target = paged_target(torch_model(max_position_embeddings=2 * MOST_GRAPH_ROWS), "flashinfer", record=record)
    cache = target.new_cache()
    for count in (3, 4, 1, 3, 1, 2):
        target.forward(cache, [7] * count)
    for layer in (2, 0):
        target.forward(cache, [7], want_state_layer=layer)
    target.forward(target.new_cache(), [7] * (MOST_GRAPH_ROWS + 1))
    assert records == [4, 1, 2]

"""Each library's attention over pages against the formula, for random batches of conversations."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moa_server.verifier.attention import Attention
from moa_server.verifier.pool import PAGE_ROWS, Batch, BatchPart, PagePool, lay_out

from tests.support.skipping import examples
from tests.unit.moa_server.verifier.paged_targets import ATTENTIONS, fake_flashinfer

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
    keys, values = (pages.flatten(0, 1).double().numpy() for pages in (pool.keys(0), pool.values(0)))
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
    plan = attention.new_plan()
    plan.load(batch)
    torch.testing.assert_close(plan.attend(0, queries), expected(pool, batch, queries), atol=1e-5, rtol=1e-5)


def test_one_plan_for_a_graph_serves_one_batch_after_the_other() -> None:
    """Among them batches without a tree, and with as many conversations as rows."""
    attention, pool = over_pages("flashinfer")
    plan = attention.new_plan(rows=8, pages=3)
    for parts in (
        [BatchPart([1] * 5, [0] * 5, 70, [3, 7], [-1, 0, 0, 1, 1])],
        [BatchPart([1], [0], place, [page]) for page, place in enumerate(range(3, 59, 7), 1)],
        [BatchPart([1] * 3, [0] * 3, 120, [9, 2])],
    ):
        batch = lay_out(parts, 8)
        queries = torch.randn(8, HEADS, HEAD_DIM)
        plan.load(batch)
        torch.testing.assert_close(plan.attend(0, queries), expected(pool, batch, queries), atol=1e-5, rtol=1e-5)

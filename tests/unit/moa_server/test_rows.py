from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_server.rows import RowStore
from moa_shared.errors import InternalError


def numbered(start: int, count: int, mark: int = 0) -> torch.Tensor:
    return torch.arange(start, start + count, dtype=torch.float32)[:, None] * torch.ones(1, 2) + 100 * mark


def test_rows_come_back() -> None:
    store = RowStore(2)
    store.write(0, numbered(0, 3))
    store.write(3, numbered(3, 2))
    assert torch.equal(store.read(1, 5).float(), numbered(1, 4))
    assert store.length == 5


def test_what_is_written_again_replaces_what_stood_behind_it() -> None:
    store = RowStore(2)
    store.write(0, numbered(0, 5))
    store.write(2, numbered(2, 1, mark=1))
    assert store.length == 3
    assert torch.equal(store.read(0, 3).float(), torch.cat([numbered(0, 2), numbered(2, 1, mark=1)]))


def test_gaps_and_rows_that_are_not_held() -> None:
    store = RowStore(2)
    with pytest.raises(InternalError):
        store.write(1, numbered(0, 1))
    store.write(0, numbered(0, 4))
    store.crop(2)
    store.crop(3)
    with pytest.raises(InternalError):
        store.read(0, 3)
    with pytest.raises(InternalError):
        store.read(-1, 1)
    assert store.read(2, 2).shape == (0, 2)


@given(writes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), max_size=12))
def test_it_is_a_list_of_rows(writes: list[tuple[int, int]]) -> None:
    store = RowStore(1)
    model: list[int] = []
    for mark, (start, count) in enumerate(writes):
        first = min(start, store.length)
        store.write(first, torch.full((count, 1), float(mark)))
        model[first:] = [mark] * count
        assert store.read(0, store.length)[:, 0].tolist() == model
    assert store.nbytes >= 2 * store.length

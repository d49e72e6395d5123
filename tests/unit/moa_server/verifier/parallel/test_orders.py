"""Orders to the other ranks come out of their numbers as they went in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from moa_server.verifier.paged.pool import PAGE_ROWS, BatchPart, Run
from moa_server.verifier.parallel.group import Move, Order, Read, Stop, decode, encode
from moa_shared.tree.arithmetic import add_depths

NUMBERS = st.lists(st.integers(0, 1 << 40), max_size=5)


@st.composite
def parts(draw: st.DrawFn) -> BatchPart:
    """A conversation's rows, in a tree or not, with just the pages that they need."""
    count = draw(st.integers(1, 5))
    tokens = draw(st.lists(st.integers(0, 1 << 20), min_size=count, max_size=count))
    prefix = draw(st.integers(0, 200))
    pages = draw(st.lists(st.integers(1, 1 << 20), min_size=-(-(prefix + count) // PAGE_ROWS)))
    used = pages[: -(-(prefix + count) // PAGE_ROWS)]
    if draw(st.booleans()):
        return BatchPart(tokens, list(range(count)), prefix, used)
    parents = [draw(st.integers(-1, row - 1)) for row in range(count)]
    return BatchPart(tokens, depths_of(parents), prefix, used, parents)


def depths_of(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    add_depths(depths, parents)
    return [depth - 1 for depth in depths]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    match draw(st.integers(0, 3)):
        case 0:
            some = draw(st.lists(parts(), min_size=1, max_size=4))
            return Run(some, draw(st.integers(0, 64)), draw(NUMBERS), draw(NUMBERS))
        case 1:
            count = draw(st.integers(0, 4))
            return Move(list(range(count)), list(range(7, 7 + count)))
        case 2:
            return Read(draw(NUMBERS))
    return Stop()


@given(order=orders())
def test_an_order_survives_its_numbers(order: Order) -> None:
    assert decode(encode(order)) == order


def test_pages_behind_the_new_rows_are_not_sent() -> None:
    run = Run([BatchPart([5], [0], 3, [9, 10, 11])], 0, [0], [])
    sent = decode(encode(run))
    assert isinstance(sent, Run)
    assert sent.parts[0].pages == [9]
    assert encode(run).dtype == np.int64

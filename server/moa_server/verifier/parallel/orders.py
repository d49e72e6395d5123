"""What rank 0 tells the others to do, as numbers: one int64 array an order.

Pure. Followers hold pages and no conversations: rank 0 alone knows which page is whose, and names pages and slots. So
there is an order for all that reads or writes keys and values, and none for what only changes the list of pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moa_server.verifier.paged.batch import BatchPart, Run

Numbers = npt.NDArray[np.int64]

_STOP, _RUN, _MOVE, _READ = range(4)


@dataclass(frozen=True, slots=True)
class Move:
    """Copy rows of keys and values from slots to others."""

    source: Sequence[int]
    to: Sequence[int]


@dataclass(frozen=True, slots=True)
class Read:
    """Send this rank's keys and values of some slots to rank 0."""

    slots: Sequence[int]


@dataclass(frozen=True, slots=True)
class Stop:
    """The replica ends."""


Order = Run | Move | Read | Stop


def encode(order: Order) -> Numbers:
    """An order as numbers; lists are preceded by their lengths."""
    match order:
        case Run():
            numbers = [_RUN, order.rows, *_list(order.chosen), *_list(order.layers), len(order.parts)]
            for part in order.parts:
                has_parents = part.parents is not None
                numbers += [*_list(part.tokens), *part.depths, part.prefix, *_list(part.used_pages()), int(has_parents)]
                numbers += part.parents or ()
        case Move():
            numbers = [_MOVE, *_list(order.source), *order.to]
        case Read():
            numbers = [_READ, *_list(order.slots)]
        case Stop():
            numbers = [_STOP]
    return np.array(numbers, np.int64)


def decode(numbers: Numbers) -> Order:
    """The order that `encode` gave these numbers for."""
    rest = iter(numbers.tolist())
    match next(rest):
        case 1:
            rows, chosen, layers, parts = next(rest), _take(rest), _take(rest), next(rest)
            return Run([_part(rest) for _ in range(parts)], rows, chosen, layers)
        case 2:
            source = _take(rest)
            return Move(source, _take(rest, len(source)))
        case 3:
            return Read(_take(rest))
    return Stop()


def _part(rest: Iterator[int]) -> BatchPart:
    tokens = _take(rest)
    depths, prefix, pages = _take(rest, len(tokens)), next(rest), _take(rest)
    return BatchPart(tokens, depths, prefix, pages, _take(rest, len(tokens)) if next(rest) else None)


def _list(numbers: Sequence[int]) -> list[int]:
    return [len(numbers), *numbers]


def _take(rest: Iterator[int], count: int | None = None) -> list[int]:
    """The next numbers; None: as many as the next one says."""
    return [next(rest) for _ in range(next(rest) if count is None else count)]

"""The shared pages themselves: keys, values and states by the numbers of the index. Runs only on the inference thread.

State: the pages kept. Invariant: a page is full, and never written while it is here: caches and stores copy a page that
others hold before they write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moa_kernels import Page
from moa_shared.errors import InternalError

from moa_server.engine.stepper import MemorySource, SessionTensors
from moa_server.memory.row_store import KeptPlane, RowStore
from moa_server.verifier.kernel_target import KernelCache

StateKind = tuple[MemorySource, KeptPlane]


class PagesNotKept(InternalError):
    """The store does not have the pages that the index names; nothing was changed."""


@dataclass(slots=True)
class KeptPage:
    """Keys and values of a page of text, and the states that drafters' sources read of it."""

    keys_values: Page
    states: dict[StateKind, Page] = field(default_factory=dict)


class PageStore:
    """Pages that several sessions use."""

    def __init__(self) -> None:
        self._kept: dict[int, KeptPage] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return sum(page.nbytes for kept in self._kept.values() for page in (kept.keys_values, *kept.states.values()))

    def keep(self, tensors: SessionTensors, first: int, numbers: Sequence[int]) -> None:
        """Keeps a session's pages from page `first` on; it uses those that are kept already in place of its own.

        That changes no bit: only targets whose rows do not depend on what they are computed with have pages to share.

        Raises:
            InternalError, KernelError: the session does not hold these pages in full.
        """
        pages, stores = _cache(tensors).pages, _stores(tensors)
        for place, number in enumerate(numbers, first):
            kept = self._kept.get(number)
            if kept is None:
                kept = self._kept[number] = KeptPage(pages.full_page(place).hold())
            else:
                pages.replace_page(place, kept.keys_values)
            for kind, store in stores.items():
                if kind in kept.states:
                    store.replace_page(place, kept.states[kind])
                else:
                    kept.states[kind] = store.full_page(place).hold()

    def give(self, tensors: SessionTensors, cached: int, numbers: Sequence[int]) -> None:
        """Makes a session hold these pages, and nothing after them.

        Args:
            cached: tokens of its text that the session holds itself; rows of its planes beyond are void.

        Raises:
            PagesNotKept: a page is not kept, or without the states that the session needs; it holds what it held.
        """
        missing = [number for number in numbers if number not in self._kept]
        kept = [self._kept[number] for number in numbers if number in self._kept]
        stores = _stores(tensors)
        if missing or any(kind not in page.states for page in kept for kind in stores):
            raise PagesNotKept(f"Of {len(numbers)} shared pages {len(missing)} are not kept, or lack their states.")
        _cache(tensors).adopt([page.keys_values for page in kept])
        for store in tensors.planes.values():
            store.crop(cached)
        for kind, store in stores.items():
            store.adopt([page.states[kind] for page in kept])

    def drop(self, numbers: Sequence[int]) -> None:
        """Keeps these pages no longer; each is freed once no session uses it."""
        for number in numbers:
            kept = self._kept.pop(number, None)
            for page in (kept.keys_values, *kept.states.values()) if kept is not None else ():
                page.let_go()


def _stores(tensors: SessionTensors) -> dict[StateKind, RowStore]:
    """The rows of a session that only a forward makes."""
    source = tensors.source
    return {(source, plane): tensors.planes[plane] for plane in tensors.states} if source is not None else {}


def _cache(tensors: SessionTensors) -> KernelCache:
    if not isinstance(tensors.cache, KernelCache):
        raise InternalError("Only the kernels' caches have pages to share.")
    return tensors.cache

"""Pieces of memory that several holders share: pages of keys and values, and snapshots of states."""

from __future__ import annotations

from typing import Self

from moa_kernels.bindings import aligned_zeros


class Page:
    """Zeroed bytes with one holder, who made it; freed when the last one drops its reference."""

    __slots__ = ("data", "holders")

    def __init__(self, nbytes: int) -> None:
        self.data = aligned_zeros(nbytes)
        self.holders = 1

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def hold(self) -> Self:
        self.holders += 1
        return self

    def let_go(self) -> None:
        """Counts one holder less; it must drop its reference too."""
        self.holders -= 1

    def writable(self) -> Page:
        """What this holder may write into: this page, or a copy instead of one that others hold too."""
        if self.holders == 1:
            return self
        copied = Page(self.nbytes)
        copied.data[:] = self.data
        self.let_go()
        return copied

"""A page of memory that several holders may have at once.

State: the bytes, and how many hold them. Invariant: who writes is the only holder; `writable` sees to it. One thread at
a time may touch the pages of a group of holders.
"""

from __future__ import annotations

from moa_kernels.bindings import aligned_zeros


class Page:
    """Zeroed bytes with one holder, who made it; freed when the last one drops its reference.

    Raises MemoryError: there is no room.
    """

    __slots__ = ("data", "holders")

    def __init__(self, nbytes: int) -> None:
        self.data = aligned_zeros(nbytes)
        self.holders = 1

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def hold(self) -> Page:
        """Counts one more holder."""
        self.holders += 1
        return self

    def let_go(self) -> None:
        """Counts one holder less; it must drop its reference too."""
        self.holders -= 1

    def writable(self) -> Page:
        """What this holder may write into: this page, or a copy instead of one that others hold too.

        Raises MemoryError: there is no room for a copy; nothing has changed.
        """
        if self.holders == 1:
            return self
        copied = Page(self.nbytes)
        copied.data[:] = self.data
        self.let_go()
        return copied

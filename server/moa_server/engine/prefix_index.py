"""Pages of text that sessions share: which text each holds, who uses it, and which goes first. Pure.

A tree of pages for each owner, of which each holder has a path from the root. Invariants: a page is found for use by
all tokens up to its end, never by a hash alone, which only tells how much is kept; pages in use are never dropped, and
a page is dropped after those that continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np
from moa_kernels import Page, Snapshot
from moa_shared.protocol.prefix_hash import hash_after

Holder = TypeVar("Holder", bound=Hashable)


class TextPage:
    """A page of text whose keys and values are kept."""

    def __init__(self, owner: str, parent: TextPage | None = None, text: bytes = b"") -> None:
        self.owner, self.parent, self.text = owner, parent, text
        self.nbytes = 0  # of keys, values and states
        self.holders = 0  # sessions that use it
        self.prefix_hash = 0  # of all tokens up to its end
        self.kinds: set[Hashable] = set()  # of states that are kept with it
        self.checkpoint_nbytes: int | None = None  # of recurrent states at its end, 0 where none are needed; None: none
        self.pages: dict[bytes, TextPage] = {}  # that continue it, by their tokens
        self.named: dict[int, TextPage] = {}  # the same, by their hashes
        # What is in it, on the inference thread; None: nothing yet, or no more.
        self.keys_values: Page | None = None
        self.states: dict[Hashable, Page] = {}
        self.checkpoint: Snapshot | None = None

    def let_go_of_checkpoint(self) -> None:
        if self.checkpoint is not None:
            self.checkpoint.let_go()
        self.checkpoint = None


class PrefixIndex(Generic[Holder]):
    """Finds pages of text that are kept. `page_tokens`: tokens of a page; 0: nothing is shared."""

    def __init__(self, page_tokens: int, on_dropped: Callable[[Sequence[TextPage]], None]) -> None:
        self.page_tokens = page_tokens
        self.nbytes = 0  # of all pages that are kept
        self.spare_nbytes = 0  # of those that no session holds
        self._on_dropped = on_dropped
        self._roots: dict[str, TextPage] = {}
        self._held: dict[Holder, list[TextPage]] = {}
        self._spare: dict[TextPage, None] = {}  # the one to go first comes first

    def held(self, holder: Holder) -> Sequence[TextPage]:
        return self._held.get(holder, ())

    def find(self, owner: str, tokens: Sequence[int], kinds: Collection[Hashable] = ()) -> list[TextPage]:
        """The longest run of kept pages that `tokens` begins with."""
        found: list[TextPage] = []
        page = self._roots.get(owner)
        for text in self._texts(tokens) if page is not None else ():
            page = page.pages.get(text) if page is not None else None
            if page is None or not page.kinds.issuperset(kinds):
                break
            found.append(page)
        return found

    def count_named(self, owner: str, prefix_hashes: Iterable[int]) -> int:
        """How many pages of a text are kept for use, as far as its hashes tell; each costs one look-up.

        `prefix_hashes`: of the text up to the end of each page, shortest first. They are followed from page to page, so
        that one call asks about one text.
        """
        page, found = self._roots.get(owner), 0
        for number, prefix_hash in enumerate(prefix_hashes, 1):
            page = page.named.get(prefix_hash) if page is not None else None
            if page is None:
                break
            if page.checkpoint_nbytes is not None:
                found = number
        return found

    def hold(self, holder: Holder, pages: Sequence[TextPage]) -> None:
        """Makes a holder use these pages, as `find` gave them, and no others."""
        for page in pages:
            page.holders += 1
            if page.holders == 1:
                del self._spare[page]
                self.spare_nbytes -= page.nbytes
        self.let_go(holder)
        self._held[holder] = list(pages)

    def extend(
        self,
        holder: Holder,
        owner: str,
        tokens: Sequence[int],
        nbytes: int,
        state_nbytes: Mapping[Hashable, int] | None = None,
        checkpoints: tuple[Collection[int], int] | None = None,
    ) -> list[TextPage]:
        """Keeps the full pages of a holder's text beyond those it holds, and holds them; returns these.

        Where others had kept a page of the same text, that one. `nbytes`: of its keys and values; `state_nbytes`: of
        its states, by kind. `checkpoints`: the lengths of the text at which there are some, and the bytes of one; None:
        none are needed.
        """
        before = len(self.held(holder))
        if not self.page_tokens or len(tokens) // self.page_tokens <= before:
            return []
        held = self._held.setdefault(holder, [])
        page = held[-1] if held else self._roots.setdefault(owner, TextPage(owner))
        for number, text in enumerate(self._texts(tokens, before), before):
            following = page.pages.get(text)
            if following is None:
                following = page.pages[text] = TextPage(owner, page, text)
                following.prefix_hash = hash_after(
                    page.prefix_hash, number * self.page_tokens, np.frombuffer(text, np.int32).tolist()
                )
                page.named[following.prefix_hash] = following
                following.nbytes = nbytes
                self.nbytes += nbytes
            elif not following.holders:
                del self._spare[following]
                self.spare_nbytes -= following.nbytes
            following.holders += 1
            for kind, added in (state_nbytes or {}).items():
                if kind not in following.kinds:
                    following.kinds.add(kind)
                    following.nbytes += added
                    self.nbytes += added
            if following.checkpoint_nbytes is None and (
                checkpoints is None or (number + 1) * self.page_tokens in checkpoints[0]
            ):
                self._set_checkpoint(following, 0 if checkpoints is None else checkpoints[1])
            held.append(following)
            page = following
        return held[before:]

    def _set_checkpoint(self, page: TextPage, nbytes: int | None) -> None:
        """Counts another checkpoint of a page that is held; None: it has none any more."""
        added = (nbytes or 0) - (page.checkpoint_nbytes or 0)
        page.checkpoint_nbytes = nbytes
        page.nbytes += added
        self.nbytes += added

    def count_checkpoints(self, holder: Holder, lengths: Iterable[int]) -> int:
        """How many of the checkpoints that a holder has at these lengths of its text are the index's too."""
        held = self.held(holder)
        pages = (held[length // self.page_tokens - 1] for length in lengths if length <= len(held) * self.page_tokens)
        return sum(page.checkpoint_nbytes is not None for page in pages)

    def drop_checkpoints(self, holder: Holder, lengths: Collection[int]) -> list[TextPage]:
        """Drops what no other text can use, but for checkpoints at these lengths; the pages that have lost theirs."""
        dropped = [
            page
            for number, page in enumerate(self.held(holder), 1)
            if page.checkpoint_nbytes
            and page.holders == 1
            and len(page.pages) <= 1
            and number * self.page_tokens not in lengths
        ]
        for page in dropped:
            self._set_checkpoint(page, None)
        return dropped

    def let_go(self, holder: Holder, keep: int = 0) -> None:
        """Ends a holder's use of its pages after the first `keep`; they stay while there is room."""
        held = self._held.get(holder, [])
        for page in reversed(held[keep:]):  # those that continue others go first
            page.holders -= 1
            if not page.holders:
                self._spare[page] = None
                self.spare_nbytes += page.nbytes
        del held[keep:]
        if not held:
            self._held.pop(holder, None)

    def bytes_left_by(self, holders: Iterable[Holder]) -> Iterator[int]:
        """For each holder, what would be unused once it and those before it let go."""
        users: dict[TextPage, int] = {}
        for holder in holders:
            left = 0
            for page in self.held(holder):
                users[page] = users.get(page, page.holders) - 1
                left += page.nbytes if not users[page] else 0
            yield left

    def drop(self, nbytes: int) -> None:
        """Drops pages that no session holds, least recently used first, until `nbytes` are free or none is left."""
        dropped: list[TextPage] = []
        while nbytes > 0 and self._spare:
            page = next(iter(self._spare))
            del self._spare[page]
            self.nbytes -= page.nbytes
            self.spare_nbytes -= page.nbytes
            nbytes -= page.nbytes
            dropped.append(page)
            self.cut(page)
        if dropped:
            self._on_dropped(dropped)

    def cut(self, page: TextPage) -> None:
        """Has a page, and those that continue it, found no more; their holders keep them."""
        parent = page.parent
        if parent is not None and parent.pages.get(page.text) is page:
            del parent.pages[page.text]
            if parent.named.get(page.prefix_hash) is page:  # no other text has its hash
                del parent.named[page.prefix_hash]
            if parent.parent is None and not parent.pages and self._roots.get(parent.owner) is parent:
                del self._roots[parent.owner]

    def _texts(self, tokens: Sequence[int], first: int = 0) -> Iterator[bytes]:
        """The full pages of a text, from page `first` on; equal bytes are equal tokens."""
        size = self.page_tokens
        if not size:
            return
        pages = np.asarray(tokens[first * size : len(tokens) // size * size], np.int32).reshape(-1, size)
        for page in pages:
            yield page.tobytes()

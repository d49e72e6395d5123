"""A 64-bit hash of every prefix of a conversation, by which both ends name the same state.

Chained BLAKE2b: hash(0) = 0, hash(t + 1) = BLAKE2b-64(hash(t) || token t). Pure; append, crop and look up cost O(1)
a token. It guards against mistakes and stale frames, not against forgery.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

_EMPTY = bytes(8)


class PrefixHashes:
    """Hashes of all prefixes of a growing list of tokens."""

    __slots__ = ("_digests",)

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._digests = [_EMPTY]
        self.extend(tokens)

    def __len__(self) -> int:
        """Number of tokens hashed."""
        return len(self._digests) - 1

    def extend(self, tokens: Iterable[int]) -> None:
        digest = self._digests[-1]
        for token in tokens:
            digest = blake2b(digest + token.to_bytes(4, "little"), digest_size=8).digest()
            self._digests.append(digest)

    def crop(self, length: int) -> None:
        """Forgets all tokens from position `length` on."""
        del self._digests[length + 1 :]

    def at(self, length: int) -> int:
        """Hash of the first `length` tokens.

        Raises:
            IndexError: fewer tokens are known.
        """
        if not 0 <= length <= len(self):
            raise IndexError(f"no hash of {length} tokens: {len(self)} are known")
        return int.from_bytes(self._digests[length], "little")

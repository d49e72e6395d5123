"""A 64-bit hash of every prefix of a conversation, by which both ends name the same state.

hash(0) = 0, hash(t + 1) = hash(t) + mix(t, token t) modulo 2^64, where mix is SplitMix64 (Steele, Lea and Flood,
OOPSLA 2014) of a state with the position in its high half and the token in its low half. A sum, so that the hashes of a
long prompt are one vectorised pass: 131,072 tokens take 2 ms, where a chained hash takes 95. Pure. It guards against
mistakes and stale frames, not against forgery: what conversations share is compared token by token (PrefixIndex).
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

NAMED_TOKENS = 64  # Describe names a text by its hashes after so many tokens each
SHORT_HASH = 0xFFFF_FFFF  # the low half: enough where a collision cannot change the text (docs/adr/0023)

_MASK = (1 << 64) - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


class PrefixHashes:
    __slots__ = ("_hashes",)

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._hashes = array("Q", [0])
        self.extend(tokens)

    def __len__(self) -> int:
        return len(self._hashes) - 1

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, each 0 to 2^32 - 1."""
        if len(tokens) >= 32:  # a NumPy pass costs as much as so many tokens one by one
            self._hashes.frombytes(_running_hashes(self._hashes[-1], len(self), tokens).tobytes())
            return
        last = self._hashes[-1]
        for position, token in enumerate(tokens, start=len(self)):
            last = (last + _mix(position << 32 | token)) & _MASK
            self._hashes.append(last)

    def crop(self, length: int) -> None:
        del self._hashes[length + 1 :]

    def at(self, length: int) -> int:
        if not 0 <= length <= len(self):
            raise IndexError(f"no hash of {length} tokens: {len(self)} are known")
        return self._hashes[length]

    def short_at(self, length: int) -> int:
        """The low half of `at`, by which drafts, verdicts and memory name their state."""
        return self.at(length) & SHORT_HASH

    def named(self) -> list[int]:
        """The hashes after each 64th token, shortest first: what Describe names a text by."""
        return self._hashes[NAMED_TOKENS::NAMED_TOKENS].tolist()


def hash_after(before: int, position: int, tokens: Sequence[int]) -> int:
    """The hash of a text that goes on with `tokens`, at least one, after `position` tokens whose hash is `before`."""
    return int(_running_hashes(before, position, tokens)[-1])


def _mix(state: int) -> int:
    value = state + _GAMMA & _MASK
    value = (value ^ value >> 30) * _FIRST & _MASK
    value = (value ^ value >> 27) * _SECOND & _MASK
    return value ^ value >> 31


def _running_hashes(last: int, position: int, tokens: Sequence[int]) -> npt.NDArray[np.uint64]:
    values = np.arange(position, position + len(tokens), dtype=np.uint64)
    values <<= np.uint64(32)
    values |= np.asarray(tokens, dtype=np.uint64)
    values += np.uint64(_GAMMA)
    values ^= values >> np.uint64(30)
    values *= np.uint64(_FIRST)
    values ^= values >> np.uint64(27)
    values *= np.uint64(_SECOND)
    values ^= values >> np.uint64(31)
    values[:1] += np.uint64(last)
    return np.cumsum(values, dtype=np.uint64)

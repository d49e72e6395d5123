"""How much of one conversation's text each server would have to read. Pure.

State: what servers have said that they hold of it, and which one serves it. Invariant: only what was learned of this
conversation counts; a server that has said nothing holds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.protocol.prefix_hash import PrefixHashes


class UnreadText:
    """What a conversation's servers hold of its text.

    Args:
        text: hashes of the conversation, as it is at any time.
    """

    def __init__(self, text: PrefixHashes) -> None:
        self._text = text
        self._cached: dict[str, int] = {}  # by address; the text only grows, or is cropped
        self._serving = ""  # its address

    @property
    def tokens(self) -> int:
        """The length of the text."""
        return len(self._text)

    @property
    def prefix_hashes(self) -> Sequence[int]:
        """What servers are asked with."""
        return self._text.named()

    def on_described(self, address: str, cached_tokens: int) -> None:
        """A server was asked about the text; it holds so much."""
        self._cached[address] = cached_tokens

    def on_served(self, address: str) -> None:
        """The server serves the conversation from now on, and so holds all of its text."""
        self._serving = address

    def unread(self, address: str) -> int:
        """Tokens that this server would have to read."""
        if address == self._serving:
            return 0
        return max(0, len(self._text) - self._cached.get(address, 0))

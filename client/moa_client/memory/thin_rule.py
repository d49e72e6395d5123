"""When a few memory rows are enough: the device drafts nothing, and the link holds. Pure.

State: the tokens since the device last drafted. Invariant: a device that drafts, or a link that was lost a while ago,
gets all rows.
"""

from __future__ import annotations

from moa_shared.protocol.thin_memory import THIN, ThinMemory

# Tokens without a draft of this device before it gives rows up: a server that drafts now and then, or is only asked
# whether it has time again, would have all rows sent anew each time.
CALM_TOKENS = 64


class ThinRule:
    """Which rows one conversation's device needs."""

    def __init__(self) -> None:
        self._calm_tokens = CALM_TOKENS  # before the first draft there is nothing that rows would be missed for

    def on_verdict(self, tokens: int, *, drafts: bool) -> None:
        """Counts `tokens` of a verdict; `drafts`: this device drafts for the server."""
        self._calm_tokens = 0 if drafts else self._calm_tokens + tokens

    def wanted(self, *, drafts: bool, is_link_trusted: bool) -> ThinMemory | None:
        """The rows that are enough now; None: all."""
        return THIN if is_link_trusted and not drafts and self._calm_tokens >= CALM_TOKENS else None

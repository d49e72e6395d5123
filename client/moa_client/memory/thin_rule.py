"""When a few memory rows are enough: the device drafts nothing, and the link holds. Pure.

State: the tokens since the device last drafted. Invariant: a device that drafts, or a link that was lost a while ago,
gets all rows.
"""

from __future__ import annotations

# Tokens without a draft of this device before it gives rows up: a server that drafts now and then, or is only asked
# whether it has time again, would have all rows sent anew each time.
CALM_TOKENS = 64


class ThinRule:
    """Whether a few rows are enough for one conversation's device."""

    def __init__(self) -> None:
        self._calm_tokens = CALM_TOKENS  # before the first draft there is nothing that rows would be missed for

    def on_verdict(self, tokens: int, *, drafts: bool) -> None:
        """Counts `tokens` of a verdict; `drafts`: this device drafts for the server."""
        self._calm_tokens = 0 if drafts else self._calm_tokens + tokens

    def allows_few(self, *, drafts: bool, is_link_trusted: bool) -> bool:
        """Whether few rows are enough now."""
        return is_link_trusted and not drafts and self._calm_tokens >= CALM_TOKENS

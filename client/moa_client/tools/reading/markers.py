"""Finds markers in text that comes in pieces. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class MarkerSearch:
    """Text in which markers are looked for. State: the end of it, as long as that may begin a marker."""

    def __init__(self) -> None:
        self.held = ""

    def add(self, char: str) -> None:
        """Appends a character."""
        self.held += char

    def take(self, markers: Sequence[str]) -> str:
        """What is certain: one of the markers, or one character that begins none; empty: more must come.

        Args:
            markers: none of them begins another, or is a single character of another's beginning.
        """
        if not self.held:
            return ""
        if self.held in markers:
            taken = self.held
        elif any(marker.startswith(self.held) for marker in markers):
            return ""
        else:
            taken = self.held[0]
        self.held = self.held[len(taken) :]
        return taken

    def drain(self) -> str:
        """The rest of the text, which ends here."""
        rest, self.held = self.held, ""
        return rest

"""Finds markers in text that comes in pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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


def have_any(markers: Iterable[str], special_tokens: Iterable[str]) -> bool:
    """Whether some of these special tokens are in markers, so that text without special tokens would lack them."""
    tokens = tuple(special_tokens)
    return any(token in marker for marker in markers for token in tokens)

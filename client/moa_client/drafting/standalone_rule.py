"""When text that no server decides may be shown, and how fast. Pure.

State: how likely it is that all text since the newest decided token is right, how long that text is, and when the next
token is due. Clock readings are arguments, in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

READING_SPEED = 12.0  # tokens a second: 500 words a minute, as fast as most people read


@dataclass(frozen=True, slots=True)
class StandaloneRule:
    """How a device writes without a server; by default all that it can, at once.

    Args:
        mode: auto: while its text is likely to be right; always: to the end; never: not at all.
        least_chance: in auto, that all text since the newest decided token is right.
        most_tokens: since then.
        tokens_per_s: 0: as fast as it can.
        end_ms: how long the link must have been lost before an answer may end without the server.
        leave_ms: how long before an answer that the device does not continue is left to the server.
    """

    mode: Literal["auto", "always", "never"] = "always"
    least_chance: float = 0.0
    most_tokens: int = 1 << 31
    tokens_per_s: float = 0.0
    end_ms: float = 0.0
    leave_ms: float = 60_000.0


class StandaloneText:
    """The text since the newest token that a server has decided."""

    def __init__(self, rule: StandaloneRule) -> None:
        self.rule = rule
        self.due_ms = 0.0  # when the next token may be shown
        self._chance = 1.0  # that all of it is right
        self._length = 0

    def begin(self) -> None:
        """Starts again after a token that a server has decided; the speed stays what it was."""
        self._chance, self._length = 1.0, 0

    def takes(self, chance: float, *, asked_for: bool) -> bool:
        """Whether a further token may be shown.

        Args:
            chance: that it is right if all before it are; `asked_for`: the user wants the text, right or not.
        """
        rule = self.rule
        if self._length >= rule.most_tokens:
            return False
        if asked_for or rule.mode == "always":
            return True
        return rule.mode == "auto" and self._chance * chance >= rule.least_chance

    def add(self, now: float, chance: float) -> None:
        """A token is shown."""
        self._chance *= chance
        self._length += 1
        if self.rule.tokens_per_s:
            self.due_ms = max(self.due_ms, now) + 1e3 / self.rule.tokens_per_s

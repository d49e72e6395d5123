"""Who drafts and how, and when text that no server decides may be shown. Pure.

State of such text: how likely it is that all of it since the newest decided token is right, and when the next token is
due. Clock readings are arguments, in milliseconds.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from moa_shared.defaults import LEAST_CHANCE

READING_SPEED = 12.0  # tokens a second: 500 words a minute, as fast as most people read


@dataclass(frozen=True, slots=True)
class StandaloneRule:
    """How a device writes without a server; by default all that it can, at once.

    Args:
        mode: auto: a companion to the end, a drafter while its text is likely to be right; always: to the end; never:
            not at all.
        least_chance: from which all text since the newest decided token is likely to be right.
        tokens_per_s: 0: as fast as it can.
        end_ms: how long the link must have been lost before an answer may end without the server.
        leave_ms: how long before an answer that the device does not continue is left to the server; inf: whoever asks
            decides how long to wait.
    """

    mode: Literal["auto", "always", "never"] = "always"
    _: KW_ONLY
    least_chance: float = LEAST_CHANCE
    tokens_per_s: float = 0.0
    end_ms: float = 0.0
    leave_ms: float = 60_000.0


class StandaloneText:
    """The text since the newest token that a server has decided."""

    def __init__(self, rule: StandaloneRule) -> None:
        self.rule = rule
        self.due_ms = 0.0  # when the next token may be shown
        self._chance = 1.0  # that all of it is right

    def begin(self) -> None:
        """Starts again after a token that a server has decided; the speed stays what it was."""
        self._chance = 1.0

    def takes(self, chance: float, *, asked_for: bool, is_companion: bool) -> bool:
        """Whether a further token may be shown.

        Args:
            chance: that it is right if all before it are; `asked_for`: the user wants the text, right or not.
            is_companion: it is a companion's, which is worth reading also where the target would say something else.
        """
        if asked_for or self.rule.mode == "always":
            return True
        return self.rule.mode == "auto" and (is_companion or self._is_likely(chance))

    def add(self, now: float, chance: float, *, asked_for: bool) -> bool:
        """A token is shown; whether all of the text is likely to be right with it."""
        is_likely = self._is_likely(chance)
        self._chance *= chance
        is_wanted = is_likely or asked_for or self.rule.mode == "always"
        # What may be withdrawn is not worth more than reading speed, also where nobody reads along.
        if speed := self.rule.tokens_per_s or (0.0 if is_wanted else READING_SPEED):
            step_ms = 1e3 / speed
            self.due_ms = max(self.due_ms, now - step_ms) + step_ms  # what the token has taken is not added to it
        return is_likely

    def _is_likely(self, chance: float) -> bool:
        return self._chance * chance >= self.rule.least_chance


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """Who drafts and how, and what happens to standalone text.

    Args:
        drafting: who drafts while a server answers; auto: the server while it does, otherwise this device.
        rounds: levels of a whole draft after each verdict, for which the server waits, as in the paper; 0: drafts are
            sent as they are made, and the server steps on where none has come.
        standalone: how the device writes without a server.
    """

    drafting: Literal["auto", "server", "device", "off"] = "auto"
    rounds: int = 0
    tree: bool = False
    standalone: StandaloneRule = StandaloneRule()

    @property
    def server_runs_ahead(self) -> bool:
        return not (self.rounds and self.device_drafts)

    @property
    def device_drafts(self) -> bool:
        return self.drafting in ("auto", "device")

    @property
    def server_drafts(self) -> bool:
        """Whether the server may draft; one that waits for drafts has no use for its own."""
        return self.drafting in ("auto", "server") and self.server_runs_ahead

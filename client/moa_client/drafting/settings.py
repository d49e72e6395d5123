"""Who drafts and how, and when text that no server decides may be shown."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from moa_shared.sampling.settings import LEAST_CHANCE

READING_SPEED = 12.0  # tokens a second: 500 words a minute, as fast as most people read


@dataclass(frozen=True, slots=True)
class StandaloneRule:
    """How a device writes without a server; by default all that it can, at once."""

    # auto: a companion to the end, a drafter while its text is likely to be right; never: not at all
    mode: Literal["auto", "always", "never"] = "always"
    _: KW_ONLY
    least_chance: float = LEAST_CHANCE  # from which all text since the newest decided token is likely to be right
    tokens_per_s: float = 0.0  # 0: as fast as it can
    end_ms: float = 0.0  # that the link must have been lost before an answer may end without the server
    leave_ms: float = 60_000.0  # before an answer that the device does not continue is left to the server


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """Who drafts and how, and what happens to standalone text."""

    # who drafts while a server answers; auto: the server while it does, otherwise this device
    drafting: Literal["auto", "server", "device", "off"] = "auto"
    # levels of a whole draft after each verdict, for which the server waits, as in the paper; 0: drafts are sent as
    # they are made, and the server steps on where none has come
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

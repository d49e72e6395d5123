"""What an answer cost, counted as it arrives. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_shared.protocol.messages import Finish

from moa_client.conversation.events import LinkState

if TYPE_CHECKING:
    from moa_shared.protocol.messages import Verdict


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """What a status line shows; figures are those of the newest answer (see there), `by_*` shares of its tokens.

    `holds_back`: the device has more text for it, which is too unlikely to be shown. `server`: the address that the
    link leads to, or last led to.
    """

    state: LinkState
    rtt_ms: float | None
    tokens_per_s: float
    by_device: float
    up_bytes: int
    down_bytes: int
    written_standalone: int = 0
    kept: int = 0
    holds_back: bool = False
    by_server: float = 0.0
    undecided: int = 0
    server: str = ""
    memory_bytes: int = 0


@dataclass(slots=True)
class Figures:
    """Counts of one answer.

    Args:
        verdicts: frames that brought them: one for each forward of the target that chose tokens.
        drafted: nodes that the target verified; `accepted`: tokens that were nodes of this device.
        server_drafted, server_accepted: nodes that only the server guessed, and tokens that were such nodes.
        cpu_seconds: of this program, all its threads together: what the answer took of a battery.
        seconds, first_token_seconds: since the question was sent.
        up_bytes, down_bytes: of messages; `memory_bytes`: of the latter, rows of memory.
        provisional: tokens of standalone text; `undecided`: those of them not yet decided; `kept`: those committed.
    """

    tokens: int = 0
    verdicts: int = 0
    accepted: int = 0
    drafted: int = 0
    server_drafted: int = 0
    server_accepted: int = 0
    stale: int = 0
    provisional: int = 0
    undecided: int = 0
    kept: int = 0
    seconds: float = 0.0
    first_token_seconds: float = 0.0
    cpu_seconds: float = 0.0
    up_bytes: int = 0
    down_bytes: int = 0
    memory_bytes: int = 0
    finish: Finish = Finish.UNFINISHED

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per forward, after the first one, which never has a draft."""
        return (self.tokens - 1) / (self.verdicts - 1) if self.verdicts > 1 else float(self.tokens)

    @property
    def tokens_per_second(self) -> float:
        return (self.tokens + self.undecided) / self.seconds if self.seconds else 0.0

    @property
    def by_device(self) -> float:
        return self.accepted / self.tokens if self.tokens else 0.0

    @property
    def by_server(self) -> float:
        return self.server_accepted / self.tokens if self.tokens else 0.0

    def status(self, state: LinkState, rtt_ms: float | None, server: str, *, holds_back: bool = False) -> LinkStatus:
        """What a status line shows, of a link to this server in this state."""
        names = ("by_device", "by_server", "up_bytes", "down_bytes", "memory_bytes", "kept", "undecided")
        same = {name: getattr(self, name) for name in names}
        speed, written = self.tokens_per_second, self.provisional
        return LinkStatus(
            state, rtt_ms, speed, **same, written_standalone=written, holds_back=holds_back, server=server
        )

    def count_verdict(self, verdict: Verdict) -> None:
        """Counts what a verdict cost and brought, besides its tokens."""
        self.verdicts += verdict.forwards
        self.accepted += verdict.accepted - verdict.server_accepted
        for name in ("drafted", "server_drafted", "server_accepted", "stale"):
            setattr(self, name, getattr(self, name) + getattr(verdict, name))

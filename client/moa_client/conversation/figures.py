"""What an answer cost: counted as it arrives, shown as one line, or in full. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_shared.protocol.finish_rule import Finish
from rich.filesize import decimal

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

    def line(self) -> str:
        """What a reader wants to know, the most important first, on one line."""
        text = _tokens(self.tokens + self.undecided)
        if self.seconds:
            text += f" in {_time(self.seconds)}"
            text += f" ({self.tokens_per_second:.{0 if self.tokens_per_second >= 10 else 1}f} tokens/s)"
            text += f", first after {_time(self.first_token_seconds)}"
        parts = [text]
        if self.verdicts:
            parts.append(drafted_words(self.by_server, self.by_device))
            parts.append(down_words(self.down_bytes, self.memory_bytes))
        if self.provisional:
            parts.append(standalone_words(self.provisional, self.kept, self.undecided))
        return "; ".join(parts)

    def details(self) -> str:
        """What else was counted; empty without a server."""
        if not self.verdicts:
            return ""
        each = max(1, self.tokens)
        return (
            f"{self.acceptance_length:.2f} tokens a verification ({self.verdicts} steps), "
            f"{self.up_bytes / each:.0f} bytes up and {self.down_bytes / each:.0f} down a token, "
            f"{1000 * self.cpu_seconds / each:.1f} ms of this device's CPU a token"
        )


def drafted_words(by_server: float, by_device: float) -> str:
    """Who drafted an answer, given the shares of its tokens."""
    server, device = round(100 * by_server), round(100 * by_device)
    if server and device:
        return f"{server + device} % drafted: {server} % by the server, {device} % here"
    if server:
        return f"{server} % drafted by the server"
    return f"{device} % drafted here" if device else "not drafted"


def down_words(down_bytes: int, memory_bytes: int) -> str:
    """What came down, and how much of it for this device's drafter."""
    drafter = f" ({decimal(memory_bytes)} for the drafter)" if memory_bytes else ""
    return f"{decimal(down_bytes)} down{drafter}"


def standalone_words(written: int, kept: int, undecided: int = 0) -> str:
    """How much was written without a server, and how much of it was right."""
    if undecided == written:
        return f"standalone {_tokens(written)}, not checked yet"
    return f"standalone {_tokens(written)}, {kept} kept{f', {undecided} not checked yet' if undecided else ''}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if 0 < seconds < 1 else f"{seconds:.1f} s"

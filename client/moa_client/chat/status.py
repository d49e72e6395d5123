"""The status line: the state of the link, and the cost of the newest answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.filesize import decimal

from moa_client.conversation.events import LinkState

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb

    from moa_client.device.drafter_choice import Choice
    from moa_client.engine import LinkStatus

MARKS = {LinkState.GOOD: "good", LinkState.SLOW: "slow", LinkState.OFFLINE: "OFFLINE", LinkState.BACK: "back"}


def execution_words(execution: pb.Execution) -> str:
    """How exact the server's text is, in words."""
    if execution.exact:
        return f"execution {execution.level}: the text does not depend on what is verified together"
    return f"execution {execution.level}: the text may depend on what is verified together"


def drafter_words(choice: Choice | None) -> str:
    """Which drafter drafts, and why."""
    return f"drafter {choice.name}: {choice.reason}" if choice is not None else "no drafter that reads memory"


def status_line(status: LinkStatus, unsettled: int = 0, reason: str = "", typed_ahead: int = 0) -> str:
    """One line, without line breaks.

    Args:
        unsettled: answers that ended without the server; it verifies them as soon as it is available.
        reason: why the link is in this state.
        typed_ahead: characters waiting for the next prompt.
    """
    parts = [f"link {MARKS[status.state]}" + (f" ({reason})" if reason else "")]
    if status.rtt_ms is not None:
        parts.append(f"RTT {status.rtt_ms:.0f} ms")
    if status.tokens_per_s:
        parts.append(f"{status.tokens_per_s:.1f} tokens/s")
        parts.append(f"{100 * status.acceptance:.0f} % drafted here")
    if status.up_bytes or status.down_bytes:
        parts.append(f"{decimal(status.up_bytes)} up, {decimal(status.down_bytes)} down")
    if unsettled:
        parts.append(f"{unsettled} unverified" if status.state is LinkState.OFFLINE else f"verifying {unsettled}")
    if typed_ahead:
        parts.append(f"{typed_ahead} typed ahead")
    return " | ".join(parts)

"""How a client talks with its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moa_client.drafting.standalone_rule import StandaloneRule


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """Who drafts and how, and what happens to standalone text.

    Args:
        drafting: who drafts while a server answers; auto: the server while it does, otherwise this device.
        rounds: a whole draft after each verdict, as in the paper; else drafts are sent as they are made.
        run_ahead: the server steps on when no draft has come (streamed), or waits for one.
        tree: drafts are trees.
        standalone: how the device writes without a server.
    """

    drafting: Literal["auto", "server", "device", "off"] = "auto"
    rounds: bool = False
    run_ahead: bool = True
    tree: bool = False
    standalone: StandaloneRule = StandaloneRule()  # noqa: RUF009 (immutable)

    @property
    def server_runs_ahead(self) -> bool:
        """Whether a server need not wait for drafts."""
        return (self.run_ahead and not self.rounds) or not self.device_drafts

    @property
    def device_drafts(self) -> bool:
        """Whether this device may draft for a server."""
        return self.drafting in ("auto", "device")

    @property
    def server_drafts(self) -> bool:
        """Whether the server may draft; one that waits for drafts has no use for its own."""
        return self.drafting in ("auto", "server") and self.server_runs_ahead

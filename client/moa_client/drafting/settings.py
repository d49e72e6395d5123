"""How a client talks with its server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class DraftingSettings:
    """How a device drafts, and what happens to standalone text.

    Args:
        drafting: streamed: drafts are sent as they are made; rounds: a whole draft after each verdict, as in the paper.
        run_ahead: the server steps on when no draft has come (streamed), or waits for one.
        reconcile: standalone text is verified, or kept as it is.
        tree: drafts are trees.
    """

    drafting: Literal["streamed", "rounds"] = "streamed"
    run_ahead: bool = True
    reconcile: Literal["verify", "keep"] = "verify"
    tree: bool = False

    @property
    def server_runs_ahead(self) -> bool:
        """Whether a server need not wait for drafts."""
        return self.run_ahead and self.drafting == "streamed"

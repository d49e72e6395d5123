"""One session's part of a forward: planned on the event loop, run on the inference thread, committed on the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.row_coding import Coding
from moa_server.engine.server_drafts import DraftedWork, DraftOrder
from moa_server.engine.stepper import CodedRows
from moa_server.session.verification import StepPlan


@dataclass(eq=False, slots=True)
class Part(DraftedWork):
    """A part of a forward. Whoever has it alone reads and writes it: first the loop, then the thread, then the loop.

    Args:
        reads: it reads a prompt, whether to its end or not.
        coding: which rows to code with it; `coded`: those that leave with its verdict.
    """

    live: LiveSession = field(kw_only=True)
    coding: Coding = field(kw_only=True)
    reads: bool = False
    coded: list[CodedRows] = field(default_factory=list)

    @classmethod
    def of(
        cls, live: LiveSession, plan: StepPlan, coding: Coding, *, reads: bool = False, order: DraftOrder | None = None
    ) -> Part:
        """A session's part."""
        return cls(live.tensors, plan, order=order, live=live, coding=coding, reads=reads)

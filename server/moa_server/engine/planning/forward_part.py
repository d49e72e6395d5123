"""One session's part of a forward: planned on the event loop, run on the inference thread, committed on the loop."""

from __future__ import annotations

from dataclasses import dataclass, field

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.rows.row_coding import Coding
from moa_server.engine.server_drafts import DraftedWork, DraftOrder
from moa_server.engine.stepper import CodedRows
from moa_server.session.verification import StepPlan


@dataclass(eq=False, slots=True)
class ForwardPart(DraftedWork):
    """A part of a forward. Owned by the loop until it is submitted, by the thread until it is posted back.

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
    ) -> ForwardPart:
        """A session's part."""
        forced = live.drafting.drafts_forced
        return cls(live.tensors, plan, drafts_forced=forced, order=order, live=live, coding=coding, reads=reads)

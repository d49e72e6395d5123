"""Codes memory rows to bytes: with a forward before its verdicts go out, after them, or when a stream asks.

State: the sessions whose older rows wait for idle time. Invariant: rows of a prompt wait until its first token is out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial

from moa_shared.programs.elapsed import ms_since

from moa_server.engine.live.live_session import LiveSession
from moa_server.engine.planning.forward_part import ForwardPart
from moa_server.engine.stepper import CodedRows, Stepper
from moa_server.engine.thread.session_jobs import SessionJobs
from moa_server.memory.feed import Chunk, MemoryFeed
from moa_server.session.verification import Verification


class RowCoder:
    """Codes rows of sessions."""

    def __init__(self, stepper: Stepper, jobs: SessionJobs) -> None:
        self._stepper = stepper
        self._jobs = jobs
        self._short_of_time: set[LiveSession] = set()

    # ------------------------------------------------------------ on the event loop

    def code(self, live: LiveSession, chunk: Chunk, *, busy: bool) -> asyncio.Future[CodedRows]:
        """Codes a chunk's rows between forwards; `busy`: forwards wait for it meanwhile."""
        feed, tensors = live.stream.feed, live.tensors
        costs = busy and feed is not None and feed.is_encoded(chunk.plane)
        budget = live.stream.budget if costs else None

        def job() -> CodedRows:
            began = time.perf_counter()
            coded = self._stepper.code(tensors, chunk)
            if budget is not None:
                self._jobs.post(partial(budget.on_encoded, ms_since(began)))
            return coded

        return self._jobs.result_of(job, urgent=True)

    def may_code(self, live: LiveSession, *, busy: bool, has_time: bool) -> bool:
        """Whether there is time to encode older rows; if not, the session's stream learns when there is.

        Args:
            busy: a forward is under way; `has_time`: it has time for drafts. If not, rows of a thin memory wait: a
                device writes nearly as well with its states alone.
        """
        stream = live.stream
        waits = stream.feed is not None and stream.feed.thin is not None and not has_time
        if not busy or (stream.budget.allows_older and not waits):
            return True
        self._short_of_time.add(live)
        return False

    def on_spare_time(self) -> None:
        """No forward is to be run now."""
        waiting, self._short_of_time = self._short_of_time, set()
        for live in waiting:
            if live.stream.feed is not None:
                live.stream.feed.may_owe = True
            if live.stream.listener is not None:
                live.stream.listener.on_spare_time()

    def release(self, part: ForwardPart, *, ended: bool) -> None:
        """Lets a step's rows go out, its verdict being on the way; `ended`: so has the answer."""
        live, feed = part.live, part.live.stream.feed
        if feed is not None and (ended or not part.coding.gives_rows(feed)):
            feed.rows_ready(live.session.cached)
        for newest in part.coded:
            self._on_coded(live, part.coding.feed, newest, 0.0)

    def _on_coded(self, live: LiveSession, feed: MemoryFeed | None, newest: CodedRows, took_ms: float) -> None:
        stream = live.stream
        if stream.feed is None or stream.feed is not feed or stream.listener is None:
            return
        if feed.is_encoded(newest.chunk.plane):
            stream.budget.on_encoded(took_ms)
        stop = newest.chunk.start + newest.chunk.count
        if stop <= live.session.cached:  # a void forward's rows are not the session's
            feed.rows_ready(stop)
            stream.listener.on_rows(newest)

    # ------------------------------------------------------------ on the inference thread

    def code_at_once(self, parts: Sequence[ForwardPart]) -> None:
        """Codes what leaves with the verdicts; a part whose rows cannot be coded has failed."""
        wanted = [(part, rows) for part in _chosen(parts) for rows in part.coding.at_once]
        if not wanted:
            return
        coded = self._stepper.code_newest([(part.tensors, rows) for part, rows in wanted])
        for (part, _), each in zip(wanted, coded, strict=True):
            if isinstance(each, Exception):
                part.outcome = each
            else:
                part.coded.append(each)

    def code_after(self, parts: Sequence[ForwardPart]) -> None:
        """Codes the rows that take time, once the verdicts are out."""
        wanted = [(part, rows) for part in _chosen(parts) for rows in part.coding.after]
        if not wanted:
            return
        began = time.perf_counter()
        coded = self._stepper.code_newest([(part.tensors, rows) for part, rows in wanted])
        took_ms = ms_since(began) / len(wanted)
        for (part, _), each in zip(wanted, coded, strict=True):
            if isinstance(each, Exception):
                self._jobs.post_loss(part.live, each)
            else:
                self._jobs.post(partial(self._on_coded, part.live, part.coding.feed, each, took_ms))


def _chosen(parts: Sequence[ForwardPart]) -> list[ForwardPart]:
    """Those that chose tokens."""
    return [part for part in parts if isinstance(part.outcome, Verification)]

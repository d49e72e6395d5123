"""The server's own forwards with drafts of fixed sizes, in this process: the order of steps is `LocalServer`'s."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from moa_server.engine.stepper import MemorySource, Stepper, Work
from moa_server.session.pending_draft import NO_DRAFT
from moa_server.session.session import Phase, Session, SessionLimits
from moa_server.session.verification import Verification
from moa_shared.errors import DataError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

from moa_bench.suites.single.drafts import NewDrafts
from moa_bench.suites.single.local_server import LocalAnswer, LocalStep


class FixedServer:
    """Answers questions, each with the same kind of drafts.

    Args:
        source: of the rows that the drafts need; None: they need none.
        end_of_text, decode: as of `LocalServer`.
    """

    def __init__(
        self,
        stepper: Stepper,
        limits: SessionLimits,
        end_of_text: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        new_drafts: NewDrafts,
        source: MemorySource | None = None,
    ) -> None:
        self._stepper = stepper
        self._limits = limits
        self._end_of_text = end_of_text
        self._decode = decode
        self._new_drafts = new_drafts
        self._source = source

    def ask(self, prompt: Sequence[int], settings: AnswerSettings) -> LocalAnswer:
        """The whole answer to a new conversation's first turn.

        Raises:
            Exception: whatever the target or the drafter raises.
        """
        session = Session(self._limits, end_of_text=self._end_of_text, decode=self._decode, run_ahead=True)
        session.on_ask(Ask(1, 0, session.hashes.at(0), tuple(prompt), settings))
        tensors = self._stepper.new_tensors()
        if self._source is not None:
            tensors.keep_rows(self._source, self._stepper.kept_widths(self._source, {}, drafts=True))
        drafts = self._new_drafts(tensors)
        began = time.perf_counter()
        reading_ms, steps = 0.0, []
        while session.phase is Phase.ANSWERING:
            session.on_ack(len(session.tokens))
            drafting = time.perf_counter()
            tree = NO_DRAFT
            if reading_ms:
                last = len(session.tokens) - len(prompt) + 1 == settings.max_tokens  # which no draft makes sooner
                tree = drafts.draft(session.tokens, session.cached, 0 if last else session.most_nodes)
            planned = session.plan_step()
            if planned is None or (plan := planned.pick(tree)) is None:
                raise DataError("An answer under way has nothing to do.", hint="Report this.")
            forwarding = time.perf_counter()
            outcome = self._stepper.verify_all([Work(tensors, plan)])[0]
            ended = time.perf_counter()
            if isinstance(outcome, Exception):
                raise outcome
            if not isinstance(outcome, Verification):
                session.on_prefilled(plan)
                continue
            session.on_verified(plan, outcome)
            if reading_ms:
                forward_ms, drafting_ms = 1e3 * (ended - forwarding), 1e3 * (forwarding - drafting)
                steps.append(LocalStep(len(outcome.taken), len(tree), forward_ms, drafting_ms))
            else:
                reading_ms = 1e3 * (time.perf_counter() - began)
        return LocalAnswer(tuple(session.tokens[len(prompt) :]), reading_ms, tuple(steps))

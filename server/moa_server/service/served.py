"""What a server serves: the target, its execution and its drafters, as clients are told."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError, NoFormsError, OverloadedError
from moa_shared.models.sources.files import UNKNOWN_POOLING, ModelPooling
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Constraint

from moa_server.drafting.forward_cost import TORCH, RowShares
from moa_server.engine.planning.fair_queue import FairQueue

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText

MOST_OF_ONE = 32  # that wait: a usual schema takes some milliseconds, the largest a few seconds
MOST_WAITING = 256  # of all callers: a form may have 256 KiB


class Forms:
    """The forms of one server's answers. `compiler`: None: this server cannot hold answers to a form."""

    def __init__(self, compiler: ConstraintCompiler | None) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, "forms")
        self._waiting: Counter[str] = Counter()  # by owner; those whose turn has come count too
        self._turns = FairQueue[tuple[str, asyncio.Future[None]]](lambda each: each[0])
        self._busy = False

    @property
    def are_offered(self) -> bool:
        return self._compiler is not None

    async def begin(self, constraint: Constraint, owner: str) -> ConstrainedText:
        """An answer under a constraint, before its first token. `owner`: whose answer it is."""
        if self._compiler is None:
            raise NoFormsError("This server cannot hold answers to a form.")
        if (known := self._compiler.known(constraint)) is not None:
            return known
        if self._waiting[owner] >= MOST_OF_ONE or self._waiting.total() >= MOST_WAITING:
            raise OverloadedError("Too many forms of answers wait to be compiled.")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[owner] += 1
        self._turns.add((owner, turn))
        self._give_turn()
        try:
            await turn
            return await loop.run_in_executor(self._thread, self._compiler.begin, constraint)
        finally:
            self._waiting[owner] -= 1
            self._waiting += Counter()  # forgets who waits no more
            if not turn.cancelled():
                self._busy = False
                self._give_turn()

    def _give_turn(self) -> None:
        while self._turns and not self._busy:
            _, turn = self._turns.take()
            if not turn.done():  # its call has ended
                self._busy = True
                turn.set_result(None)


@dataclass(frozen=True, slots=True)
class Served:
    """The target as the service needs to know it.

    Args:
        step_ms: time of a plain step at the start; 0: not measured.
        row_shares: what further rows added to it.
        constraints: compiles the forms of answers; None: it has none.
    """

    identity: pb.Identity
    execution: pb.Execution
    vocab_size: int
    context_tokens: int
    end_of_text: frozenset[int]
    decode: Callable[[Sequence[int]], str]
    drafters: tuple[pb.Drafter, ...] = ()
    step_ms: float = 0.0
    row_shares: RowShares = TORCH
    constraints: ConstraintCompiler | None = None
    pooling: ModelPooling = UNKNOWN_POOLING
    raw_text_only: bool = False

    def new_execution(self, before: bytes) -> pb.NewExecution | None:
        """The message for a client whose conversation began on another execution than this server's."""
        if before == self.identity.execution:
            return None
        return pb.NewExecution(
            fingerprint=self.identity.execution, execution=self.execution, end_of_text=sorted(self.end_of_text)
        )

    def check_vocabulary(self, settings: AnswerSettings) -> None:
        for token, _ in settings.sampling.logit_bias[-1:]:  # the largest
            if token >= self.vocab_size:
                raise ConfigError(
                    f"logit_bias names token {token}, outside the vocabulary (0 to {self.vocab_size - 1}).",
                    hint="Use the server's tokenizer.",
                )

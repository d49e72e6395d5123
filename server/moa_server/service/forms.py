"""Compiles the forms that answers must have, away from the event loop.

State: one thread, and how many wait for it. Invariant: who comes when too many wait is refused.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from moa_shared.errors import NoFormsError, OverloadedError
from moa_shared.sampling.constraint import Constraint

if TYPE_CHECKING:
    from moa_shared.constraints.compiler import ConstraintCompiler
    from moa_shared.constraints.constrained_text import ConstrainedText

MOST_WAITING = 32  # a usual schema takes some milliseconds, the largest a few seconds


class Forms:
    """The forms of one server's answers.

    Args:
        compiler: None: this server cannot hold answers to a form.
    """

    def __init__(self, compiler: ConstraintCompiler | None) -> None:
        self._compiler = compiler
        self._thread = ThreadPoolExecutor(1, "forms")
        self._waiting = 0

    @property
    def are_offered(self) -> bool:
        return self._compiler is not None

    async def begin(self, constraint: Constraint) -> ConstrainedText:
        """An answer under a constraint, before its first token.

        Raises:
            ConfigError: the constraint cannot be enforced.
            NoFormsError: none can be here.
            OverloadedError: too many wait already.
        """
        if self._compiler is None:
            raise NoFormsError("This server cannot hold answers to a form.")
        if self._waiting >= MOST_WAITING:
            raise OverloadedError("Too many forms of answers wait to be compiled.")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._compiler.begin, constraint)
        finally:
            self._waiting -= 1

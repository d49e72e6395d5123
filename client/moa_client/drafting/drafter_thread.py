"""Runs the drafter on the device's inference thread: told committed tokens and memory, asked for one thing at a time.

State: the thread, which runs one call after the other (one draft step at a time, and memory as the credit allows), the
tokens that the drafter has, and the call under way. Results are posted to the engine's inbox. Invariants: the drafter
learns every token before it is asked for what follows; calls run in the order in which they were made.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from moa_shared.errors import InternalError, MoaError, ProtocolError
from moa_shared.programs.machine import ms_since
from moa_shared.protocol.memory_codec import decode
from moa_shared.protocol.messages import Memory, Plane
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling
from moa_shared.tree import DraftTree

from moa_client.drafting.drafters import ClientDrafter
from moa_client.drafting.online import DraftExtended, DraftStep

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class TokenWritten:
    """One more token of standalone text."""

    serial: int  # of the text that it continues
    length: int  # how many tokens of that have been shown
    token: int | None  # None: the drafter has nothing to say
    chance: float = 1.0  # that it is the target's, if all before it are


DrafterResult = DraftExtended | TokenWritten | MoaError  # it failed, or could not read the memory (ProtocolError)


class DrafterExecutor:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafter")

    def submit(self, call: Callable[[], Result]) -> asyncio.Future[Result]:
        """Runs a call after those before it; the future holds its result or exception."""
        return asyncio.get_running_loop().run_in_executor(self._pool, call)

    def close(self) -> None:
        """Lets the running call end; accepts no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)


MOST_MAGNITUDE = 2.0**20  # of a number in memory; the largest states of known models are below 2^15
IDLE_SECONDS = 0.002  # without a call, before the text is read ahead: a draft may be due at once
READING_SHARE = 0.25  # of the time, at most, that reading ahead takes from drafts that never pause
FEW_TOKENS = 16  # and rows, that a step reads besides its own work: verdicts bring this many


class DrafterThread:
    """Runs one drafter. `post`: takes results, on the event loop. `executor`: of all conversations; None: its own."""

    def __init__(
        self, drafter: ClientDrafter, post: Callable[[DrafterResult], None], executor: DrafterExecutor | None = None
    ) -> None:
        self.drafter = drafter
        self.busy = False
        self.sampling = Sampling(0.0)  # of the newest answer
        self.post = post
        self._is_closed = False
        self._executor = executor or DrafterExecutor()
        self._is_shared = executor is not None
        self._told: list[int] = []
        self._told_hash: int | None = None  # of all of them, if known
        self._unsent: list[int] = []  # the newest of them: they do not wake the thread, its next call brings them
        self._began = False  # before that, the drafter may know another conversation
        self._read = 0  # how many of them the drafter has read in some step
        self._new_rows = 0  # of memory since the last step
        self._reads: Callable[..., bool] | None = getattr(drafter, "read_on", None)
        self._reading: asyncio.TimerHandle | None = None  # the text is read ahead from then on
        self._read_seconds = 0.0  # that the newest piece took
        self._pause_ends = 0.0  # until then no piece comes between drafts

    def tell(self, tokens: Sequence[int], hashes: PrefixHashes | None = None) -> int:
        """Sets the tokens of the conversation; the position up to which the drafter's knowledge is still valid.

        By hashes of their prefixes the earlier tokens are compared in a time that does not depend on their length.
        """
        told, told_hash = self._told, self._told_hash
        self._told_hash = hashes.at(len(tokens)) if hashes is not None else None
        if self._began and len(tokens) >= len(told) and _begins_with(tokens, hashes, told, told_hash):
            new = tokens[len(told) :]
            told += new
            self._unsent += new
            if self._reads is not None:
                self._send_unsent()
            return 1 << 62
        pairs = enumerate(zip(told, tokens, strict=False))
        held = next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(told), len(tokens)))
        self._told, self._began, self._unsent = list(tokens), True, []
        self._read = min(self._read, held)
        self._call(partial(self.drafter.restart, list(tokens)))
        return held

    def take_rows(self, memory: Memory, width: int) -> None:
        """Takes in memory, decoded on the thread; an invalid payload is posted as a fault."""
        self._new_rows += memory.count
        self._send_unsent()
        self._call(partial(self._decode, memory, width))

    def begin_growth(self, step: DraftStep, sampling: Sampling) -> None:
        """Runs one step of a draft; `DraftExtended` comes."""
        is_typical = max(len(self._told) - self._read, self._new_rows) <= FEW_TOKENS
        self._ask_drafter(partial(self._grow, step, sampling, is_typical=is_typical), writes=False)

    def write(self, serial: int, written: Sequence[int], sampling: Sampling) -> None:
        """Has the next token of standalone text written; `TokenWritten` comes."""
        self._ask_drafter(partial(self._write, serial, DraftTree.chain(written), sampling), writes=True)

    @property
    def may_begin(self) -> bool:
        """Whether the drafter can begin an answer to a question that no server has read."""
        return self._reads is not None

    def close(self) -> None:
        """Lets the running call end; its result is no longer posted."""
        self._is_closed = True
        self._read_ahead(is_idle=False)
        if not self._is_shared:
            self._executor.close()

    def _send_unsent(self) -> None:
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._call(partial(self.drafter.commit, unsent))

    def _call(self, call: Callable[[], None]) -> None:
        self._executor.submit(call).add_done_callback(self._on_called)

    def _ask_drafter(self, call: Callable[[], DrafterResult], *, writes: bool) -> None:
        """Runs a call as soon as the text that it needs is read; calls of others come between the pieces of that."""
        self.busy = True
        self._send_unsent()
        self._read, self._new_rows = len(self._told), 0
        self._read_ahead(is_idle=False)
        asked = self._executor.submit(lambda: None if self._read_on(writes=writes) else call())
        asked.add_done_callback(partial(self._on_asked, call, writes=writes))

    def _read_ahead(self, *, is_idle: bool) -> None:
        """Has the text be read ahead from now on if nothing else is to be done, or not."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        if is_idle and self._reads is not None and not self.busy and not self._is_closed:
            self._reading = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._read_piece)

    def _read_piece(self) -> None:
        self._reading = None
        self._executor.submit(partial(self._read_on, writes=True)).add_done_callback(self._on_read)

    def _on_read(self, future: asyncio.Future[bool]) -> None:
        self._pause_ends = time.monotonic() + self._read_seconds * (1 / READING_SHARE - 1)
        if not self._has_failed(future) and not future.cancelled() and future.result():
            self._read_ahead(is_idle=True)

    def _on_called(self, future: asyncio.Future[None]) -> None:
        if not self._has_failed(future):
            self._read_ahead(is_idle=True)

    def _on_asked(self, call: Callable[[], DrafterResult], future: asyncio.Future[Any], *, writes: bool) -> None:
        self.busy = False
        if future.cancelled() or self._has_failed(future) or self._is_closed:
            return
        if (result := future.result()) is None:
            self._ask_drafter(call, writes=writes)
            return
        self.post(result)
        if self._reads is not None and time.monotonic() >= self._pause_ends:
            self._read_piece()  # before the next draft
        else:
            self._read_ahead(is_idle=True)

    def _has_failed(self, future: asyncio.Future[Any]) -> bool:
        """Whether a call has failed, which is posted."""
        error = None if future.cancelled() else future.exception()
        if error is None:
            return False
        if not isinstance(error, Exception):
            raise error
        if not isinstance(error, MoaError):
            defect, error = error, InternalError(f"The drafter has failed ({type(error).__name__}).")
            error.__cause__ = defect
        if not self._is_closed:
            self.post(error)
        return True

    # ------------------------------------------------------------ on the thread

    def _read_on(self, *, writes: bool) -> bool:
        if self._reads is None or self._is_closed:
            return False
        began = time.monotonic()
        is_left = self._reads(self.sampling, writes=writes)
        self._read_seconds = time.monotonic() - began
        return is_left

    def _decode(self, memory: Memory, width: int) -> None:
        rows = decode(memory.payload, memory.codec, memory.count, width)
        if rows.size and not np.abs(rows).max() <= MOST_MAGNITUDE:  # NaN fails too
            raise ProtocolError(f"memory of numbers up to {MOST_MAGNITUDE:g}", "larger ones, or what is no number")
        self.drafter.remember(memory.start, rows, state=memory.plane is Plane.REUSED_STATE)

    def _grow(self, step: DraftStep, sampling: Sampling, *, is_typical: bool) -> DraftExtended:
        began = time.perf_counter()
        growth = self.drafter.grow(step.draft, sampling)
        took_ms = ms_since(began)
        return DraftExtended(step, growth, took_ms if is_typical else None)

    def _write(self, serial: int, written: DraftTree, sampling: Sampling) -> TokenWritten:
        token = self.drafter.write(written, sampling)
        return TokenWritten(serial, len(written), *(token or (None,)))


def _begins_with(tokens: Sequence[int], hashes: PrefixHashes | None, told: list[int], told_hash: int | None) -> bool:
    if hashes is not None and told_hash is not None:
        return hashes.at(len(told)) == told_hash
    return tokens[: len(told)] == told

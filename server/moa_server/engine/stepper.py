"""One step of one session: forward, selection, verification, memory rows. Runs only on the inference thread.

State: none of its own; each session's `SessionTensors` (KV cache and rows) are touched by the inference thread only.
Invariant: after `choose` the cache holds exactly the fed tokens and the accepted path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared.protocol.codec import Codec, encode, row_bytes
from moa_shared.protocol.messages import Plane
from moa_shared.sampling.coupling import select
from moa_shared.tree.arithmetic import below_chain

from moa_server.memory.feed import Chunk
from moa_server.memory.row_store import RowStore
from moa_server.session.session import StepPlan, Verification

if TYPE_CHECKING:
    from moa_server.target import KVCache, Target

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Turns the target's activations into the rows that a drafter reads; all are float32 arrays.

    Args:
        encode: [tokens, layers, 2 * kv_heads * head_dim] of the cache to [tokens, width] memory rows.
        width: numbers of a memory row on the wire.
        state_layer: decoder layer whose input is the reused state; None: the drafter reuses no layers.
        reads_state: `encode` takes that state, [tokens, hidden size], in place of keys and values, and no plane holds
            it (EAGLE-2, which reads what leaves the last layer).
        fingerprint: sha256 of the drafter that reads these rows.
    """

    encode: Callable[[Rows], Rows]
    width: int
    state_layer: int | None
    reads_state: bool = False
    fingerprint: bytes = b""


@dataclass(slots=True)
class SessionTensors:
    """What the inference thread keeps for one session.

    Args:
        planes: rows of the planes that the session's client wants.
        source: makes them; None: the client wants none.
    """

    cache: KVCache
    planes: dict[Plane, RowStore]
    source: MemorySource | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.cache.nbytes + sum(store.nbytes for store in self.planes.values())

    def keep_rows(self, source: MemorySource | None, widths: Mapping[Plane, int]) -> None:
        """Keeps the rows that `source` makes, of these planes too; those of another source are dropped."""
        if source is not self.source:
            self.source, self.planes = source, {}
        for plane, width in widths.items():
            if plane not in self.planes:
                self.planes[plane] = RowStore(width)

    def release(self) -> None:
        """Gives all memory back: every token must be read again."""
        self.cache.release()
        for store in self.planes.values():
            store.release()


@dataclass(frozen=True, slots=True)
class CodedRows:
    """Rows ready for the wire."""

    chunk: Chunk
    payload: bytes


class Stepper:
    """Runs the target for sessions.

    Args:
        target: the verifier.
        sources: of memory rows, one for each drafter that is served; the first is for clients that name none.
    """

    def __init__(self, target: Target, sources: Sequence[MemorySource] = ()) -> None:
        self.target = target
        self.sources = tuple(sources)

    def find_source(self, fingerprint: bytes) -> MemorySource | None:
        """The source of rows for the drafter with that fingerprint; None if it is not served."""
        return next((each for each in self.sources if not fingerprint or each.fingerprint == fingerprint), None)

    def widths(self, source: MemorySource, *, reused_state: bool) -> dict[Plane, int]:
        """Row widths of the planes that a client of this source can have."""
        widths = {Plane.MEMORY: source.width}
        if reused_state and source.state_layer is not None and not source.reads_state:
            widths[Plane.REUSED_STATE] = self.target.hidden_size
        return widths

    def made_by_forward(self, source: MemorySource, plane: Plane) -> bool:
        """Whether a plane's rows come from the forward itself and cannot be made from the cache later."""
        return plane is Plane.REUSED_STATE or source.reads_state

    def new_tensors(self) -> SessionTensors:
        return SessionTensors(self.target.new_cache(), {})

    def verify(self, tensors: SessionTensors, plan: StepPlan) -> Verification | None:
        """Runs the forward; returns what the target chose, None for a chunk of a prompt, which chooses nothing."""
        cache = tensors.cache
        cache.crop(plan.cached)
        for store in tensors.planes.values():
            store.crop(plan.cached)
        source = tensors.source
        reads_state = source is not None and source.reads_state
        states = tensors.planes.get(Plane.MEMORY if reads_state else Plane.REUSED_STATE)
        fed = len(plan.feed)
        output = self.target.forward(
            cache,
            [*plan.feed, *plan.tree.tokens],
            _parents(plan),
            slice(fed - 1, None) if plan.chooses else slice(0, 0),
            source.state_layer if states is not None and source is not None else None,
        )
        verification = None
        kept: Sequence[int] = ()
        if plan.chooses:
            verification = plan.verify(select(output.logits, plan.positions, plan.settings.sampling))
            kept = [fed + node for node in verification.kept]
            cache.keep([*range(fed), *kept])
        if states is not None and output.state is not None:
            rows = output.state[[*range(fed), *kept]]
            states.write(plan.cached, source.encode(rows) if source is not None and source.reads_state else rows)
        return verification

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
        """Codes a chunk's rows to bytes; memory rows are encoded now if they were not before."""
        store = tensors.planes[chunk.plane]
        stop = chunk.start + chunk.count
        missing = store.first_missing(chunk.start, stop)
        if chunk.plane is Plane.MEMORY and missing < stop and tensors.source is not None:
            store.write(missing, tensors.source.encode(tensors.cache.lsa_input(missing, stop)))
        return CodedRows(chunk, encode(store.read(chunk.start, stop), chunk.codec))

    def code_newest(self, tensors: SessionTensors, plane: Plane, start: int, codec: Codec, most_rows: int) -> CodedRows:
        """The newest rows from `start` on, in the chunk that a stream without backlog will ask for next."""
        stop = tensors.cache.length
        count = min(stop - start, most_rows)
        nbytes = count * row_bytes(codec, tensors.planes[plane].width)
        return self.code(tensors, Chunk(plane, stop - count, count, codec, nbytes))


def _parents(plan: StepPlan) -> list[int] | None:
    """Parents of the fed tokens (a chain) and of the nodes below the last of them; None for a chain in all."""
    if plan.tree.is_chain:
        return None
    return below_chain(len(plan.feed), plan.tree.parents)

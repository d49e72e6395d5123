"""One step of several sessions: forward, selection, verification, memory rows. Runs only on the inference thread.

State: none of its own; each session's `SessionTensors` (KV cache and rows) are touched by the inference thread only.
Invariant: after a verification a cache holds exactly the fed tokens and the accepted path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from moa_shared.protocol.memory_codec import Codec, encode, row_bytes
from moa_shared.protocol.messages import Plane
from moa_shared.tree import ROOT

from moa_server.drafting.session_drafter import OwnDrafter, SessionDrafter
from moa_server.session.memory_feed import Chunk, KeptPlane, OwnPlane, RowStore
from moa_server.session.verification import StepPlan, Verification
from moa_server.verifier import Request

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import Allowed

    from moa_server.verifier import KVCache, Target, TargetOutput

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Turns the target's activations into the rows that a drafter reads; all are float32 arrays.

    Args:
        encode: [tokens, layers, 2 * kv_heads * head_dim] of the cache to [tokens, width] memory rows.
        width: numbers of a memory row on the wire.
        state_layer: decoder layer whose input is the reused state; None: the drafter reuses no layers.
        reads_layers: `encode` takes the inputs of these decoder layers side by side, [tokens, layers * hidden size], in
            place of keys and values, and no plane holds them; as many as there are layers: what leaves the last one,
            which is all that EAGLE-2 reads.
        drafter: for drafts of the server's own, over the same memory rows; None: the server does not draft.
        drafter_layer: decoder layer whose input `drafter` reads, where that is not `state_layer`.
    """

    encode: Callable[[Rows], Rows]
    width: int
    state_layer: int | None
    reads_layers: tuple[int, ...] = ()
    fingerprint: bytes = b""
    drafter: OwnDrafter | None = None
    drafter_layer: int | None = None

    @property
    def has_states(self) -> bool:
        return self.state_layer is not None

    def layers_of(self, plane: KeptPlane) -> tuple[int, ...]:
        """The decoder layers whose inputs a forward must give for a plane; none: its rows are made from the cache."""
        if plane is Plane.MEMORY:
            return self.reads_layers
        layer = self.drafter_layer if plane is OwnPlane.STATE else self.state_layer
        return () if layer is None else (layer,)


@dataclass(slots=True)
class SessionTensors:
    """What the inference thread keeps for one session.

    Args:
        planes: rows of the planes that the session's client wants, or the server's drafter.
        source: makes them; None: the client wants none.
        drafter: guesses here; None: it has not begun, or has failed.

    Attributes:
        states: the planes whose rows a forward yields, with the layers whose inputs they are made from; `layers`: all
            of these.
    """

    cache: KVCache
    planes: dict[KeptPlane, RowStore]
    source: MemorySource | None = None
    drafter: SessionDrafter | None = None
    states: dict[KeptPlane, tuple[int, ...]] = field(default_factory=dict, init=False)
    layers: tuple[int, ...] = field(default=(), init=False)

    @property
    def nbytes(self) -> int:
        drafter = self.drafter  # the event loop asks too, and the drafter may go meanwhile
        rows = sum(store.nbytes for store in tuple(self.planes.values()))
        return self.cache.nbytes + rows + (drafter.nbytes if drafter is not None else 0)

    def keep_rows(self, source: MemorySource | None, widths: Mapping[KeptPlane, int]) -> None:
        """Keeps the rows that `source` makes, of these planes too; those of another source are dropped."""
        if source is not self.source:
            self.source, self.planes, self.drafter = source, {}, None
        for plane, width in widths.items():
            if plane not in self.planes:
                self.planes[plane] = RowStore(width)
        layers = {plane: source.layers_of(plane) for plane in self.planes} if source is not None else {}
        self.states = {plane: of_plane for plane, of_plane in layers.items() if of_plane}
        self.layers = tuple(sorted(set().union(*self.states.values())))

    def crop(self, length: int) -> None:
        self.cache.crop(length)
        for store in self.planes.values():
            store.crop(length)

    def read(self, plane: KeptPlane, start: int, stop: int) -> Rows:
        """Rows of a plane that is kept, [stop - start, width]; missing memory rows are encoded now."""
        store, source = self.planes[plane], self.source
        missing = store.first_missing(start, stop)
        if plane is Plane.MEMORY and missing < stop and source is not None and not source.reads_layers:
            store.write(missing, source.encode(self.cache.lsa_input(missing, stop)))
        return store.read(start, stop)

    def read_for_drafter(self, plane: Plane, start: int, stop: int) -> Rows:
        """As `read`, with the states that the server's drafter needs."""
        own = plane is Plane.REUSED_STATE and OwnPlane.STATE in self.planes
        return self.read(OwnPlane.STATE if own else plane, start, stop)

    def release(self) -> None:
        self.drafter = None
        self.cache.release()
        for store in self.planes.values():
            store.release()


@dataclass(frozen=True, slots=True)
class CodedRows:
    chunk: Chunk
    payload: bytes


@dataclass(frozen=True, slots=True)
class NewestRows:
    """Rows of a plane from `start` to the newest one, at most `most_rows` of them."""

    plane: Plane
    start: int
    codec: Codec
    most_rows: int


Outcome = Verification | Exception | None  # None: a chunk of a prompt was read


@dataclass(eq=False, slots=True)
class Work:
    """One session's share of a forward.

    `outcome`: what the target chose, or why it failed, once the forward has ended.
    """

    tensors: SessionTensors
    plan: StepPlan
    outcome: Outcome = None

    @property
    def rows(self) -> int:
        return len(self.plan.feed) + len(self.plan.tree)


class Stepper:
    """Runs the target for sessions.

    `sources`: of memory rows, one for each drafter that is served; the first is for clients that name none.
    """

    def __init__(self, target: Target, sources: Sequence[MemorySource] = ()) -> None:
        self.target = target
        self.sources = tuple(sources)
        self._masks = ThreadPoolExecutor(1, "masks")  # computed while the forward runs

    def find_source(self, fingerprint: bytes) -> MemorySource | None:
        return next((each for each in self.sources if not fingerprint or each.fingerprint == fingerprint), None)

    def widths(self, source: MemorySource, *, reused_state: bool) -> dict[Plane, int]:
        widths = {Plane.MEMORY: source.width}
        if reused_state and source.has_states:
            widths[Plane.REUSED_STATE] = self.target.hidden_size
        return widths

    def kept_widths(self, source: MemorySource, widths: Mapping[Plane, int], *, drafts: bool) -> dict[KeptPlane, int]:
        """Row widths of the planes to keep for a client that wants `widths`; `drafts`: the server drafts too."""
        kept: dict[KeptPlane, int] = {plane: width for plane, width in widths.items()}  # noqa: C416 (of a wider type)
        if drafts:
            kept.update(self.widths(source, reused_state=source.drafter_layer is None).items())
            if source.drafter_layer is not None:
                kept[OwnPlane.STATE] = self.target.hidden_size
        return kept

    def made_by_forward(self, source: MemorySource, plane: KeptPlane) -> bool:
        """Whether a plane's rows come from the forward itself and cannot be made from the cache later."""
        return bool(source.layers_of(plane))

    def new_tensors(self) -> SessionTensors:
        return SessionTensors(self.target.new_cache(), {})

    def verify_all(self, work: Sequence[Work]) -> list[Outcome]:
        """Runs one forward for several sessions; what the target chose for each, or why it failed.

        If the forward fails, each session has one of its own, so that only those that fail again are lost.
        """
        has_forms = any(each.plan.form is not None for each in work)
        masks = self._masks.submit(_masks_of, [each.plan for each in work]) if has_forms else None
        try:
            outputs = self.forward_all(work)
        except Exception as error:  # noqa: BLE001 (whatever the target raises ends only the sessions that it concerns)
            return [self.verify_all([each])[0] for each in work] if len(work) > 1 else [error]
        outcomes: list[Outcome] = []
        read: list[_ReadStates] = []
        found = masks.result() if masks is not None else [None] * len(work)
        for each, output, allowed in zip(work, outputs, found, strict=True):
            if isinstance(allowed, Exception):
                outcomes.append(allowed)
                continue
            try:
                outcome, kept = None, list(range(len(each.plan.feed)))  # rows of the forward that stay
                if each.plan.chooses:
                    outcome = each.plan.choose_tokens(output.logits, allowed)
                    kept += [len(kept) + node for node in outcome.kept]
                    each.tensors.cache.keep(kept)
                read += self._keep_states(each.tensors, each.plan.cached, output, kept, len(outcomes))
                outcomes.append(outcome)
            except Exception as error:  # noqa: BLE001 (as above)
                outcomes.append(error)
        for number, failed in _encode_read(read).items():
            outcomes[number] = failed
        return outcomes

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        requests = []
        for each in work:
            tensors, plan = each.tensors, each.plan
            tensors.crop(plan.cached)
            fed = len(plan.feed)
            wanted = range(fed - 1, fed + len(plan.tree)) if plan.chooses else ()
            tokens = [*plan.feed, *plan.tree.tokens]
            requests.append(Request(tensors.cache, tokens, _parents(plan), wanted, tensors.layers))
        return self.target.forward_all(requests)

    def _keep_states(
        self, tensors: SessionTensors, start: int, output: TargetOutput, kept: Sequence[int], number: int
    ) -> list[_ReadStates]:
        """Keeps the states of the rows that stay; gives those that memory rows are to be made from."""
        read = []
        for plane, layers in tensors.states.items():
            parts = [output.states[layer][kept] for layer in layers]
            rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
            if plane is Plane.MEMORY and tensors.source is not None:
                read.append(_ReadStates(number, tensors.source, tensors.planes[plane], start, rows))
            else:
                tensors.planes[plane].write(start, rows)
        return read

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
        rows = tensors.read(chunk.plane, chunk.start, chunk.start + chunk.count)
        return CodedRows(chunk, encode(rows, chunk.codec))

    def code_newest(self, wanted: Sequence[tuple[SessionTensors, NewestRows]]) -> list[CodedRows | Exception]:
        """Codes the newest rows of several sessions, all of a kind with one call; or why that failed."""
        chunks = [(tensors, _newest_chunk(tensors, rows)) for tensors, rows in wanted]
        # If this fails, each is encoded and coded by itself below.
        with suppress(Exception):
            self._encode(chunks)
            return [*_coded_together(chunks)]  # a list of CodedRows alone is not one of the wider type
        coded: list[CodedRows | Exception] = []
        for tensors, chunk in chunks:
            try:
                coded.append(self.code(tensors, chunk))
            except Exception as error:  # noqa: BLE001 (as above)
                coded.append(error)
        return coded

    def _encode(self, chunks: Sequence[tuple[SessionTensors, Chunk]]) -> None:
        missing: dict[int, list[tuple[SessionTensors, int, int]]] = {}
        for tensors, chunk in chunks:
            source, stop = tensors.source, chunk.start + chunk.count
            if chunk.plane is Plane.MEMORY and source is not None:
                start = tensors.planes[chunk.plane].first_missing(chunk.start, stop)
                if start < stop:
                    missing.setdefault(id(source), []).append((tensors, start, stop))
        for parts in missing.values():
            source = parts[0][0].source
            if source is None:
                continue
            rows = source.encode(
                self.target.lsa_inputs([(tensors.cache, start, stop) for tensors, start, stop in parts])
            )
            done = 0
            for tensors, start, stop in parts:
                tensors.planes[Plane.MEMORY].write(start, rows[done : done + stop - start])
                done += stop - start


@dataclass(frozen=True, slots=True)
class _ReadStates:
    """States that a session's memory rows are to be made from.

    `rows`: [tokens, layers * hidden size], of the positions from `start`.
    """

    number: int
    source: MemorySource
    store: RowStore
    start: int
    rows: Rows


def _encode_read(read: Sequence[_ReadStates]) -> dict[int, Exception]:
    """Makes memory rows of all sessions that have the same source at once; why that failed, by session.

    If it fails for several, each is tried by itself, so that only those that fail again are lost.
    """
    failed: dict[int, Exception] = {}
    by_source: dict[int, list[_ReadStates]] = {}
    for each in read:
        by_source.setdefault(id(each.source), []).append(each)
    for parts in by_source.values():
        try:
            encoded = parts[0].source.encode(np.concatenate([each.rows for each in parts]))
            ends = np.cumsum([len(each.rows) for each in parts])
            for each, rows in zip(parts, np.split(encoded, ends[:-1]), strict=True):
                each.store.write(each.start, rows)
        except Exception as error:  # noqa: BLE001 (as above)
            alone = [_encode_read([each]) for each in parts] if len(parts) > 1 else [{parts[0].number: error}]
            failed |= {number: reason for each in alone for number, reason in each.items()}
    return failed


def _masks_of(plans: Sequence[StepPlan]) -> list[Allowed | Exception | None]:
    """Which tokens each session's form allows, or why that cannot be known; None: any."""
    found: list[Allowed | Exception | None] = []
    for plan in plans:
        try:
            found.append(plan.allowed())
        except Exception as error:  # noqa: BLE001 (as above)
            found.append(error)
    return found


def _newest_chunk(tensors: SessionTensors, rows: NewestRows) -> Chunk:
    """The newest rows, in the chunk that a stream without backlog will ask for next."""
    stop = tensors.cache.length
    count = min(stop - rows.start, rows.most_rows)
    nbytes = count * row_bytes(rows.codec, tensors.planes[rows.plane].width)
    return Chunk(rows.plane, stop - count, count, rows.codec, nbytes)


def _coded_together(chunks: Sequence[tuple[SessionTensors, Chunk]]) -> list[CodedRows]:
    """Codes rows that are there, with one call for each codec and width: a call costs as much as several rows."""
    kinds: dict[tuple[Codec, int], list[int]] = {}
    for number, (tensors, chunk) in enumerate(chunks):
        kinds.setdefault((chunk.codec, tensors.planes[chunk.plane].width), []).append(number)
    payloads: dict[int, bytes] = {}
    for (codec, width), numbers in kinds.items():
        rows = [
            tensors.planes[chunk.plane].read(chunk.start, chunk.start + chunk.count)
            for tensors, chunk in (chunks[number] for number in numbers)
        ]
        coded = encode(np.concatenate(rows), codec)
        done = 0
        for number, each in zip(numbers, rows, strict=True):
            stop = done + len(each) * row_bytes(codec, width)
            payloads[number], done = coded[done:stop], stop
    return [CodedRows(chunk, payloads[number]) for number, (_, chunk) in enumerate(chunks)]


def _parents(plan: StepPlan) -> list[int] | None:
    """Parents of the fed tokens (a chain) and of the nodes below the last of them; None for a chain in all."""
    if plan.tree.is_chain:
        return None
    return below_chain(len(plan.feed), plan.tree.parents)


def below_chain(length: int, parents: Iterable[int]) -> list[int]:
    """Parents of a chain of `length` nodes followed by a tree that hangs below the last of them."""
    return [*range(ROOT, length - 1), *[length + parent for parent in parents]]

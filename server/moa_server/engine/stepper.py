"""One step of several sessions: the server's drafts, forward, selection, verification, memory rows.

Runs only on the inference thread. State: what the steps of drafters took; each session's `SessionTensors` (KV cache and
rows) are touched by this thread only. Invariants: after a verification a cache holds exactly the fed tokens and the
accepted path; a drafter that fails costs its session the drafts, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import structlog
from moa_shared.programs.machine import ms_since
from moa_shared.protocol.memory_codec import Codec, encode, row_bytes
from moa_shared.protocol.messages import Plane
from moa_shared.tree import ROOT

from moa_server.drafting.draft_decision import DraftOrder, GrowthRule, MemorySource
from moa_server.drafting.forward_cost import CostLine
from moa_server.drafting.session_drafter import DrafterRecord, Guess, ReadingRoom, SessionDrafter
from moa_server.session.memory_feed import Chunk, KeptPlane, OwnPlane, Rows, RowStore
from moa_server.session.verification import StepPlan, Verification
from moa_server.verifier import Request

if TYPE_CHECKING:
    from moa_shared.constraints.constrained_text import Allowed

    from moa_server.verifier import KVCache, Target, TargetOutput

log = structlog.get_logger()


@dataclass(slots=True)
class SessionTensors:
    """What the inference thread keeps for one session."""

    cache: KVCache
    planes: dict[KeptPlane, RowStore]  # rows that the session's client wants, or the server's drafter
    source: MemorySource | None = None  # makes them; None: nobody wants any
    drafter: SessionDrafter | None = None  # guesses here; None: it has not begun, or has failed
    # The planes whose rows a forward yields, with the layers whose inputs they are made from; `layers`: all of these.
    states: dict[KeptPlane, tuple[int, ...]] = field(default_factory=dict, init=False)
    layers: tuple[int, ...] = field(default=(), init=False)

    @property
    def nbytes(self) -> int:
        drafter = self.drafter  # the event loop asks too, and the drafter may go meanwhile
        rows = sum(store.nbytes for store in tuple(self.planes.values()))
        return self.cache.nbytes + rows + (drafter.nbytes if drafter is not None else 0)

    def keep_rows(self, source: MemorySource, widths: Mapping[KeptPlane, int]) -> None:
        """Keeps the rows that `source` makes, of these planes too; those of another source are dropped."""
        if source is not self.source:
            self.source, self.planes, self.drafter = source, {}, None
        for plane, width in widths.items():
            if plane not in self.planes:
                self.planes[plane] = RowStore(width)
        self.states = {plane: layers for plane in self.planes if (layers := source.layers_of(plane))}
        self.layers = tuple(sorted(set().union(*self.states.values())))

    def crop(self, length: int) -> int:
        """Forgets what comes after; how many rows the cache holds then: fewer if it has lost recurrent states."""
        for store in self.planes.values():
            store.crop(length)
        return self.cache.crop(length)

    def read(self, plane: KeptPlane, start: int, stop: int) -> Rows:
        """Rows of a plane that is kept, [stop - start, width]; missing memory rows are encoded now."""
        store, source = self.planes[plane], self.source
        missing = store.first_missing(start, stop)
        if plane is Plane.MEMORY and missing < stop and source is not None and not source.reads_layers:
            store.write(missing, source.encode(_inputs(source, self.cache, missing, stop)))
        return store.read(start, stop)

    def read_for_drafter(self, plane: Plane, start: int, stop: int) -> Rows:
        """As `read`, with the states that the server's drafter needs."""
        own = plane is Plane.REUSED_STATE and OwnPlane.STATE in self.planes
        return self.read(OwnPlane.STATE if own else plane, start, stop)

    def release(self) -> None:
        self.drafter = None
        self.cache.release()
        for store in self.planes.values():
            store.crop(0)


def _inputs(source: MemorySource, cache: KVCache, start: int, stop: int) -> Rows:
    layers = source.cache_layers
    return cache.read_layers(layers, start, stop) if layers else cache.lsa_input(start, stop)


class CodedRows(NamedTuple):
    chunk: Chunk
    payload: bytes


class NewestRows(NamedTuple):
    """Rows of a plane from `start` to the newest one, at most `most_rows` of them."""

    plane: Plane
    start: int
    codec: Codec
    most_rows: int


Outcome = Verification | Exception | None  # None: a chunk of a prompt was read


@dataclass(eq=False, slots=True)
class Work:
    """One session's share of a forward."""

    tensors: SessionTensors
    plan: StepPlan
    order: DraftOrder | None = None  # what the server drafts before it; None: nothing
    drafts_forced: bool = False  # whether it drafts what the answer's form forces
    keeps_states: bool = True  # whether the states that it yields are kept
    outcome: Outcome = None  # what the target chose, or why it failed, once the forward has ended
    guess: Guess | None = None  # what the server's drafter added; None: it was not asked

    @property
    def rows(self) -> int:
        return len(self.plan.feed) + len(self.plan.tree)


# Of a plain step that a step of the drafter takes, until one has been measured: of EAGLE-3 at 8B. What seems too dear
# at first is never tried.
STEP_SHARE = 0.05


class ServerDrafts:
    def __init__(self) -> None:
        self._records: dict[int, DrafterRecord] = {}  # by the drafter's identity

    def deepen(self, work: Sequence[Work], price: float, cost: CostLine) -> float:
        """Adds what forms force, and the server's nodes, to the plans; returns how long that took, in ms.

        `price`: tokens that a millisecond must bring.
        """
        began = time.perf_counter()
        for each in work:
            if each.drafts_forced:
                each.plan = each.plan.with_forced()
        rows, room = sum(each.rows for each in work) - 1, ReadingRoom()
        for each in work:
            if each.order is not None:
                each.guess = self._guess(each, each.order, price, cost, rows, room)
            if each.guess is not None and each.guess.own:
                each.plan = each.plan.extend(each.guess.tree, each.plan.own_nodes + each.guess.own)
                rows += each.guess.own
        return ms_since(began)

    @staticmethod
    def learn_from(work: Sequence[Work]) -> None:
        for each in work:
            if each.guess is None or not isinstance(each.outcome, Verification):
                continue
            if (drafter := each.tensors.drafter) is not None:
                drafter.learn_guess(each.guess, each.outcome.taken)

    def _guess(
        self, work: Work, order: DraftOrder, price: float, cost: CostLine, rows: int, room: ReadingRoom
    ) -> Guess | None:
        tensors, plan, source = work.tensors, work.plan, work.tensors.source
        if source is None or source.drafter is None:
            return None
        record = self._records.get(id(source.drafter))
        if record is None:
            record = DrafterRecord(STEP_SHARE * cost.plain_ms, source.drafter.block_levels)
            self._records[id(source.drafter)] = record
        try:
            if tensors.drafter is None:
                if order.base:
                    return None  # it has failed in this answer
                planes = (Plane.MEMORY, Plane.REUSED_STATE) if source.has_states else (Plane.MEMORY,)
                tensors.drafter = SessionDrafter(source.drafter, record, planes)
            if tensors.crop(plan.cached) < plan.cached:
                return None  # rows that it would read are missing
            tensors.drafter.tell(order.base, order.tokens)
            most_nodes = max(0, order.most_nodes - len(plan.tree))
            rule = GrowthRule(price, cost, rows, record.step_ms.mean, record.follow_ms.mean, most_nodes)
            read = tensors.read_for_drafter
            return tensors.drafter.guess(
                plan.tree, order.covered, plan.sampling, rule, read, plan.cached, room, plan.form
            )
        except Exception as error:
            tensors.drafter = None
            log.error("the server's drafter failed: the session goes on without it", exc_info=error)
            return None


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
        kept: dict[KeptPlane, int] = dict(widths.items())
        if drafts:
            kept.update(self.widths(source, reused_state=source.drafter_layer is None).items())
            if source.drafter_layer is not None:
                kept[OwnPlane.STATE] = self.target.hidden_size
        return kept

    def new_tensors(self) -> SessionTensors:
        return SessionTensors(self.target.new_cache(), {})

    def verify_all(self, work: Sequence[Work]) -> list[Outcome]:
        """Runs one forward for several sessions; what the target chose for each, or why it failed.

        If the forward fails, each session has one of its own, so that only those that fail again are lost; recurrent
        states that the first one has torn are read again.
        """
        has_forms = any(each.plan.form is not None for each in work)
        masks = self._masks.submit(_masks_of, [each.plan for each in work]) if has_forms else None
        outputs = together_or_alone(work, self.forward_all)
        found = masks.result() if masks is not None else [None] * len(work)
        outcomes: list[Outcome] = []
        read: list[_ReadStates] = []
        for each, output, allowed in zip(work, outputs, found, strict=True):
            try:
                if isinstance(output, Exception):
                    raise output
                if isinstance(allowed, Exception):
                    raise allowed
                outcome, kept = None, list(range(len(each.plan.feed)))  # rows of the forward that stay
                if each.plan.leaves_checkpoint:
                    each.tensors.cache.checkpoint()
                if each.plan.chooses:
                    outcome = each.plan.choose_tokens(output.logits, allowed)
                    kept += [len(kept) + node for node in outcome.kept]
                    each.tensors.cache.keep(kept)
                if each.tensors.states and each.keeps_states:
                    read += _keep_states(each, output, kept, len(outcomes))
                outcomes.append(outcome)
            except Exception as error:  # noqa: BLE001 (whatever it is ends only this session)
                outcomes.append(error)
        for states, failed in zip(read, _encode_read(read), strict=True):
            if isinstance(failed, Exception):
                outcomes[states.number] = failed
        return outcomes

    def forward_all(self, work: Sequence[Work]) -> list[TargetOutput]:
        requests = []
        for each in work:
            tensors, plan = each.tensors, each.plan
            if (held := tensors.crop(plan.cached)) < plan.cached:
                self.target.prefill(tensors.cache, plan.text[held : plan.cached])
            fed = len(plan.feed)
            wanted = range(fed - 1, fed + len(plan.tree)) if plan.chooses else ()
            tokens = [*plan.feed, *plan.tree.tokens]
            parents = None if plan.tree.is_chain else below_chain(fed, plan.tree.parents)
            layers = tensors.layers if each.keeps_states else ()
            requests.append(Request(tensors.cache, tokens, parents, wanted, layers, len(plan.tree)))
        return self.target.forward_all(requests)

    def code(self, tensors: SessionTensors, chunk: Chunk) -> CodedRows:
        rows = tensors.read(chunk.plane, chunk.start, chunk.start + chunk.count)
        return CodedRows(chunk, encode(rows[:, : chunk.width or None], chunk.codec))

    def code_newest(self, wanted: Sequence[tuple[SessionTensors, NewestRows]]) -> list[CodedRows | Exception]:
        """Codes the newest rows of several sessions, all of a kind with one call; or why that failed."""
        return together_or_alone([(tensors, _newest_chunk(tensors, rows)) for tensors, rows in wanted], self._code_all)

    def _code_all(self, chunks: Sequence[tuple[SessionTensors, Chunk]]) -> list[CodedRows]:
        """Codes rows with one call for each codec and width: a call costs as much as several rows."""
        self._encode_missing(chunks)
        kinds: dict[tuple[Codec, int], list[int]] = {}
        for number, (tensors, chunk) in enumerate(chunks):
            kinds.setdefault((chunk.codec, chunk.width or tensors.planes[chunk.plane].width), []).append(number)
        payloads = [b""] * len(chunks)
        for (codec, width), numbers in kinds.items():
            rows = [
                tensors.planes[chunk.plane].read(chunk.start, chunk.start + chunk.count)[:, :width]
                for tensors, chunk in (chunks[number] for number in numbers)
            ]
            coded, done = encode(np.concatenate(rows), codec), 0
            for number, each in zip(numbers, rows, strict=True):
                stop = done + len(each) * row_bytes(codec, width)
                payloads[number], done = coded[done:stop], stop
        return [CodedRows(chunk, payload) for (_, chunk), payload in zip(chunks, payloads, strict=True)]

    def _encode_missing(self, chunks: Sequence[tuple[SessionTensors, Chunk]]) -> None:
        missing: dict[int, list[tuple[SessionTensors, int, int]]] = {}
        for tensors, chunk in chunks:
            if chunk.plane is Plane.MEMORY and tensors.source is not None:
                stop = chunk.start + chunk.count
                start = tensors.planes[chunk.plane].first_missing(chunk.start, stop)
                if start < stop:
                    missing.setdefault(id(tensors.source), []).append((tensors, start, stop))
        for parts in missing.values():
            spans, source = [(tensors.cache, start, stop) for tensors, start, stop in parts], parts[0][0].source
            if source is not None and source.cache_layers:
                inputs = np.concatenate([_inputs(source, *span) for span in spans])
            else:
                inputs = self.target.lsa_inputs(spans)
            _write_encoded(inputs, [(tensors, start, stop - start) for tensors, start, stop in parts])


T = TypeVar("T")
R = TypeVar("R")


def together_or_alone(items: Sequence[T], run: Callable[[Sequence[T]], list[R]]) -> list[R | Exception]:
    """What `run` gives for all; if that fails, what it gives for each by itself, or why it failed for that one."""
    try:
        return [*run(items)]
    except Exception as error:  # noqa: BLE001 (whatever it is ends only the sessions that it concerns)
        return [error] if len(items) == 1 else [together_or_alone([each], run)[0] for each in items]


@dataclass(frozen=True, slots=True)
class _ReadStates:
    """States that the memory rows of session `number` of a forward are to be made from.

    `rows`: [tokens, layers * hidden size], of the positions from `start`.
    """

    number: int
    tensors: SessionTensors
    start: int
    rows: Rows


def _keep_states(work: Work, output: TargetOutput, kept: Sequence[int], number: int) -> list[_ReadStates]:
    """Keeps the states of the rows that stay; gives those that memory rows are to be made from."""
    tensors, start, read = work.tensors, work.plan.cached, []
    for plane, layers in tensors.states.items():
        # Copies, so that nothing holds on to the states of all sessions in the forward.
        states = [output.states[layer] for layer in layers]
        parts = [rows[kept] if len(kept) < len(rows) else rows.copy() for rows in states]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        if plane is Plane.MEMORY:
            read.append(_ReadStates(number, tensors, start, rows))
        else:
            make = tensors.source.newest_state if tensors.source is not None else None
            tensors.planes[plane].write(start, rows if make is None else make(rows))
    return read


def _encode_read(read: Sequence[_ReadStates]) -> list[Exception | None]:
    """Makes memory rows of all sessions that have the same source at once; why that failed, for each."""
    failed: dict[int, Exception | None] = {}
    for source in {id(each.tensors.source) for each in read}:
        of_source = [each for each in read if id(each.tensors.source) == source]
        for each, outcome in zip(of_source, together_or_alone(of_source, _encode_states), strict=True):
            failed[id(each)] = outcome
    return [failed[id(each)] for each in read]


def _encode_states(read: Sequence[_ReadStates]) -> list[Exception | None]:
    inputs = np.concatenate([each.rows for each in read])
    _write_encoded(inputs, [(each.tensors, each.start, len(each.rows)) for each in read])
    return [None] * len(read)


def _write_encoded(inputs: Rows, parts: Sequence[tuple[SessionTensors, int, int]]) -> None:
    """Makes memory rows of the inputs of sessions with the same source: of each, from a position on so many."""
    if (source := parts[0][0].source) is not None:
        rows, done = source.encode(inputs), 0
        for tensors, start, count in parts:
            tensors.planes[Plane.MEMORY].write(start, rows[done : done + count])
            done += count


def _masks_of(plans: Sequence[StepPlan]) -> list[Allowed | Exception | None]:
    """Which tokens each session's form allows, or why that cannot be known; None: any."""
    return [together_or_alone([plan], lambda plans: [plans[0].allowed()])[0] for plan in plans]


def _newest_chunk(tensors: SessionTensors, rows: NewestRows) -> Chunk:
    """The newest rows, in the chunk that a stream without backlog will ask for next."""
    stop = tensors.cache.length
    count = min(stop - rows.start, rows.most_rows)
    nbytes = count * row_bytes(rows.codec, tensors.planes[rows.plane].width)
    return Chunk(rows.plane, stop - count, count, rows.codec, nbytes)


def below_chain(length: int, parents: Iterable[int]) -> list[int]:
    """Parents of a chain of `length` nodes followed by a tree that hangs below the last of them."""
    return [*range(ROOT, length - 1), *[length + parent for parent in parents]]

"""What a step costs besides the models, after texts of different lengths: it must not grow with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moa_bench.report.spread import Spread

if TYPE_CHECKING:
    from moa_client.drafting.drafter_thread import DrafterThread
    from moa_server.session.session import Session
    from moa_shared.drafter import DraftDecoder

LENGTHS = (1_000, 8_000, 64_000)  # tokens
SLICE = 256  # of a prompt


@dataclass(frozen=True, slots=True)
class Growth:
    """What a piece of work costs as the text before it grows.

    Args:
        us: microseconds, by the length of the text before it.
    """

    what: str
    us: Mapping[int, Spread]


def measure_growth(decoder: DraftDecoder, repeats: int, lengths: Sequence[int] = LENGTHS) -> list[Growth]:
    """Each piece at each length, `repeats` times, without any model's arithmetic but that of one memory row."""
    pieces: dict[str, Callable[[int], Callable[[], object]]] = {
        "server: a plain step": _plain_step,
        f"server: a slice of {SLICE} of a prompt": _prompt_slice,
        "server: a memory frame": _server_memory,
        "client: a memory frame, taken in": lambda length: _client_memory(decoder, length),
        "client: the drafter learns a verdict": _verdict_told,
    }
    return [
        Growth(what, {length: Spread.of(_time(prepare(length), repeats)) for length in lengths})
        for what, prepare in pieces.items()
    ]


def _time(plan: Callable[[], object], repeats: int) -> list[float]:
    plan()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        plan()
        taken.append(1e6 * (time.perf_counter() - began))
    return taken


def _session(prompt: int) -> Session:
    from moa_server.session.session import Session, SessionLimits
    from moa_shared.protocol.finish_rule import AnswerSettings
    from moa_shared.protocol.messages import Ask

    limits = SessionLimits(1 << 30, 1000, prefill_chunk=SLICE, run_ahead_tokens=1 << 30)
    session = Session(limits, end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1] * prompt, AnswerSettings(), 1))
    return session


def _plain_step(length: int) -> Callable[[], object]:
    """A plain step in an answer as long as the text."""
    session = _session(length)
    session.cached = length - 1

    def step() -> None:
        plan = session.plan_step()
        if plan is not None:
            session.on_verified(plan, plan.verify([7]))

    return step


def _prompt_slice(length: int) -> Callable[[], object]:
    """A slice of a prompt that is still to be read whole."""
    session = _session(length)

    def read() -> None:
        plan = session.plan_step()
        if plan is not None:
            session.on_prefilled(plan)
        session.cached = 0

    return read


def _server_memory(length: int) -> Callable[[], object]:
    from moa_server.memory.feed import MemoryFeed
    from moa_server.memory.row_store import RowStore
    from moa_shared.protocol.memory_codec import Codec, encode
    from moa_shared.protocol.messages import Plane

    width = 256
    store, feed = RowStore(width), MemoryFeed({Plane.MEMORY: width}, Codec.INT4, 1 << 40, encoded=())
    store.write(0, np.zeros((length, width), np.float32))
    feed.rows_ready(length)
    while feed.take() is not None:
        pass
    at = length

    def send() -> None:
        nonlocal at
        store.write(at, np.zeros((1, width), np.float32))
        at += 1
        feed.rows_ready(at)
        chunk = feed.take()
        if chunk is not None:
            encode(store.read(chunk.start, chunk.start + chunk.count), chunk.codec)

    return send


def _client_memory(decoder: DraftDecoder, length: int) -> Callable[[], object]:
    from moa_shared.drafter import DraftState

    width = decoder.config.memory_width
    state = DraftState(decoder)
    for start in range(0, length, 1000):
        state.append_memory(start, np.zeros((1000, width), np.float32))
    row, at = np.zeros((1, width), np.float32), length

    def take_in() -> None:
        nonlocal at
        state.append_memory(at, row)
        at += 1

    return take_in


def _verdict_told(length: int) -> Callable[[], object]:
    from moa_shared.protocol.prefix_hash import PrefixHashes

    tokens = [1] * length
    hashes = PrefixHashes(tokens)
    thread = _thread()
    thread.tell(tokens, hashes)

    def tell() -> None:
        tokens.append(2)
        hashes.extend([2])
        thread.tell(tokens, hashes)

    return tell


def _thread() -> DrafterThread:
    """A drafter thread whose drafter has no thread: what is measured happens on the event loop."""
    from moa_client.drafting.drafter_thread import DrafterThread
    from moa_client.drafting.drafters import LookupDrafter

    class LoopHalf(DrafterThread):
        def _call(self, call: Callable[[], None]) -> None:
            """Nothing is run."""

    return LoopHalf(LookupDrafter(1), lambda _: None)

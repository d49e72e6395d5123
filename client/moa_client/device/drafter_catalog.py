"""Which drafter this device takes: those that are here, the time of a level of each, and which is faster.

State: a record per drafter, kernels and threads in the cache folder; a damaged one is measured again. With one drafter
there is nothing to choose, and nothing is timed.

The model of the choice, in ms. The server takes a plain step every S and verifies in V; the device drafts a level every
L, and a guess is right with probability p = 1 - 1 / A, where A is the drafter's tokens per forward. After a miss the
device is a round trip and two levels behind, and gains S - L on each plain step: k = (2 L + RTT) / (S - L) + 1 of
them, in which every guess must be right, or it is behind again. So a cycle yields T = (1 - q) / (1 - p) tokens at
S each, with q = p^k, and if it caught up, A more at the pace of device or server, whichever is slower: max(L, V / A).
Compared with the bench's simulation over S = 12 to 50, L = 4 to 15, RTT = 0.5 to 60 and A = 2.4 and 3.7, its speed over
plain streaming is within 10 % of the simulated one (3 % on average), and it picks the same drafter in 35 of 36 cases.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
from moa.v1 import moa_pb2 as pb
from moa_kernels import threads, variant_name
from moa_shared.drafter.checkpoint import load_checkpoint
from moa_shared.drafter.companion import Companion
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.models.storage.cache import cache_root, recall, remember
from moa_shared.models.weights import WeightReader
from moa_shared.programs.machine import ms_since

from moa_client.device.sources import AUTO, NONE, Sources, means_served, meant_drafters
from moa_client.settings import ClientSettings

VERIFIED_ROWS = 4.0  # on average, of those that a server finds worth their time
UNKNOWN_ACCEPTANCE = 2.0  # tokens per forward of a drafter about which the server says nothing
COMPANION = "companion"  # the choice of the companion to draft for the server too


@dataclass(frozen=True, slots=True)
class DrafterCandidate:
    name: str
    level_ms: float  # of a level of a draft
    tokens_a_forward: float  # that one yields, with the target's own; 0: not known


@dataclass(frozen=True, slots=True)
class ServerPace:
    step_ms: float  # a plain step
    row_ms: float  # each additional row
    rtt_ms: float


@dataclass(frozen=True, slots=True)
class DrafterChoice:
    """A drafter, and why it was chosen. `standalone`: the one that writes without a server, if it is another."""

    name: str
    reason: str
    standalone: str = ""


def speedup(candidate: DrafterCandidate, server: ServerPace) -> float:
    """Tokens a second with this drafter relative to plain streaming; at least 1: useless drafts are not waited for."""
    step, level = server.step_ms, candidate.level_ms
    if level >= step:
        return 1.0
    tokens = max(1.0, candidate.tokens_a_forward or UNKNOWN_ACCEPTANCE)
    right = 1 - 1 / tokens
    behind = (2 * level + server.rtt_ms) / (step - level) + 1
    caught_up = float(right**behind)
    plain_tokens = (1 - caught_up) / (1 - right)
    pace = max(level, (step + VERIFIED_ROWS * server.row_ms) / tokens)
    took = plain_tokens * step + caught_up * tokens * pace
    return float(max(1.0, step * (plain_tokens + caught_up * tokens) / took))


def choose(candidates: Sequence[DrafterCandidate], server: ServerPace) -> DrafterChoice:
    """The fastest candidate; the first wins a tie."""
    speeds = {each.name: speedup(each, server) for each in candidates}
    figures = ", ".join(f"{each.name} {speeds[each.name]:.2f} (a level {each.level_ms:.1f} ms)" for each in candidates)
    where = f"{server.step_ms:.0f} ms a step and a round trip of {server.rtt_ms:.0f} ms"
    best = max(speeds, key=speeds.__getitem__)
    return DrafterChoice(best, f"expected speed over plain streaming at {where}: {figures}")


def drafters_here(settings: ClientSettings, sources: Sources) -> dict[str, pb.Drafter]:
    """Those of the server's drafters that --drafter means and that are on this device, by name."""
    meant = meant_drafters(settings, sources.served)
    return {each.name: each for each in meant if each.fingerprint in sources.drafters}


def choose_drafter(
    settings: ClientSettings, sources: Sources, companion: Companion | None, server: ServerPace | None
) -> DrafterChoice | None:
    """The drafter to use: one of the server's, or the companion; None: there is none.

    `companion`: may draft where --drafter leaves the choice open, or nobody else drafts. `server`: None: it is away.
    """
    here = drafters_here(settings, sources)
    is_open = settings.drafter in (AUTO, NONE) or (means_served(settings) and not here)
    may_draft = companion if is_open else None
    if not here:
        return DrafterChoice(COMPANION, "the only one here") if may_draft is not None else None
    is_known = server is not None and server.step_ms > 0
    if len(here) == 1 and not (is_known and may_draft):
        reason = "as wished" if settings.drafter != AUTO else "the only one that the server gives memory for"
        return DrafterChoice(next(iter(here)), reason)
    if server is None or not is_known or settings.drafting in ("server", "off"):
        best = max(here.values(), key=lambda each: each.tokens_a_forward).name
        return DrafterChoice(best, "this device does not draft for a server of a known speed: the one most often right")
    return choose(measure_drafters(settings, sources, may_draft), server)


def measure_drafters(
    settings: ClientSettings, sources: Sources, companion: Companion | None = None
) -> list[DrafterCandidate]:
    """The time of a level of each drafter that is here, and of the companion's."""

    def new_state(drafter: pb.Drafter) -> ConversationDrafter | None:
        checkpoint = load_checkpoint(sources.drafters[drafter.fingerprint])
        config = checkpoint.config
        if not config.traits.is_timed:
            return None
        state = checkpoint.states(WeightReader(sources.files), settings.dtype)()
        state.extend([0] * CONTEXT_TOKENS)
        rng = np.random.default_rng(0)
        state.append_memory(0, rng.standard_normal((CONTEXT_TOKENS - 1, config.memory_width), np.float32))
        if config.reused_layers:
            state.append_reused_state(0, rng.standard_normal((CONTEXT_TOKENS - 1, config.hidden_size), np.float32))
        return state

    measured = []
    for each in drafters_here(settings, sources).values():
        took = level_ms(settings, each.fingerprint.hex(), partial(new_state, each))
        measured.append(DrafterCandidate(each.name, took, each.tokens_a_forward))
    if companion is not None:
        took = companion_level_ms(settings, companion)
        measured.append(DrafterCandidate(COMPANION, took, companion.agreement.tokens_a_forward))
    return measured


def companion_level_ms(settings: ClientSettings, companion: Companion) -> float:
    def new_state() -> ConversationDrafter:
        state = companion.new_state()
        state.extend([0] * CONTEXT_TOKENS)
        return state

    return level_ms(settings, companion.fingerprint, new_state)


CONTEXT_TOKENS = 128  # before the measured levels: a question and the first lines of its answer
LEVELS = 5
WIDEST_MS = 60_000.0  # a longer level is not a valid measurement


def level_ms(settings: ClientSettings, fingerprint: str, new_state: Callable[[], ConversationDrafter | None]) -> float:
    """Time of a level of a drafter, or a block's for each of its levels; from the record if there is one.

    `new_state`: makes its state after a text, only if the time is not known; None of a kind that is not measured: 0.
    """
    root, breadth = cache_root(settings.cache_dir), 1 if settings.mode == "chain" else settings.breadth
    key = f"level-{fingerprint[:32]}-{variant_name()}-{threads()}-{breadth}"
    known = recall(root, key).get("ms")
    if isinstance(known, float) and math.isfinite(known) and 0 < known < WIDEST_MS:
        return known
    if (state := new_state()) is None:
        return 0.0
    measured = _measure(state, breadth)
    remember(root, key, {"ms": measured})
    return measured


def _measure(state: ConversationDrafter, breadth: int) -> float:
    """The median of some levels, each below the one before; of a block drafter that of some blocks, by level."""
    took = []
    if state.most_depth is not None:
        for _ in range(LEVELS):
            began = time.perf_counter()
            state.begin()
            took.append(ms_since(began) / state.most_depth)
        return median(took)
    state.begin()
    for level in range(LEVELS):
        first = level * breadth
        parents = [max(-1, first - breadth + node) for node in range(breadth)] if level else [-1] * breadth
        began = time.perf_counter()
        state.expand(list(range(breadth)), parents)
        took.append(ms_since(began))
    return median(took)

"""The drafters that this device may choose from: their checkpoints, the time of a level, and which is faster.

State: the candidates, timed once (a record per drafter, kernels and threads is in the cache folder; a damaged one is
measured again); how often a companion is right is learnt meanwhile. With one drafter there is nothing to choose.

The model of the choice, in ms. The server takes a plain step every S and verifies in V; the device drafts a level every
L, and a guess is right with probability p = 1 - 1 / A, where A is the drafter's tokens per forward. After a miss the
device is a round trip and two levels behind, and gains S - L on each plain step: k = (2 L + RTT) / (S - L) + 1 of
them, in which every guess must be right, or it is behind again. So a cycle yields T = (1 - q) / (1 - p) tokens at
S each, with q = p^k, and if it caught up, A more at the pace of device or server, whichever is slower: max(L, V / A).
Compared with the bench's simulation over S = 12 to 50, L = 4 to 15, RTT = 0.5 to 60 and A = 2.4 and 3.7, its speed over
plain streaming is within 10 % of the simulated one (3 % on average), and it picks the same drafter in 35 of 36 cases.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from moa.v1 import moa_pb2 as pb
from moa_kernels import threads, variant_name
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, load_checkpoint
from moa_shared.drafter.companion import Companion
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.companion import CompanionState
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.models.sources.cache import cache_root, recall, remember
from moa_shared.models.weights.weights import WeightReader
from moa_shared.programs.machine import ms_since

from moa_client.device.sources import AUTO, NONE, Sources, means_served, meant_drafters
from moa_client.settings import ClientSettings

VERIFIED_ROWS = 4.0  # on average, of those that a server finds worth their time
HYSTERESIS = 1.1  # another drafter must be this much faster: changing reads the conversation again
UNKNOWN_ACCEPTANCE = 2.0  # tokens per forward of a drafter about which the server says nothing


@dataclass(frozen=True, slots=True)
class DrafterCandidate:
    """A drafter on this device.

    A level of a draft takes `level_ms`; a forward yields `tokens_a_forward`, with the target's own (0: unknown).
    """

    name: str
    level_ms: float
    tokens_a_forward: float


@dataclass(frozen=True, slots=True)
class ServerPace:
    """How fast a server is. `step_ms`: of a plain step; `row_ms`: of each additional row; `rtt_ms`: of a round trip."""

    step_ms: float
    row_ms: float
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


def choose(candidates: Sequence[DrafterCandidate], server: ServerPace, current: str | None = None) -> DrafterChoice:
    """The fastest candidate; the one in use unless another is clearly faster.

    `candidates`: at least one; the first wins a tie.
    """
    speeds = {each.name: speedup(each, server) for each in candidates}
    best = max(candidates, key=lambda each: speeds[each.name])
    if current in speeds and speeds[best.name] < HYSTERESIS * speeds[current]:
        best = next(each for each in candidates if each.name == current)
    figures = ", ".join(f"{each.name} {speeds[each.name]:.2f} (a level {each.level_ms:.1f} ms)" for each in candidates)
    reason = (
        f"expected speed over plain streaming at {server.step_ms:.0f} ms a step and a round trip of "
        f"{server.rtt_ms:.0f} ms: {figures}"
    )
    return DrafterChoice(best.name, reason)


def best_standalone(candidates: Sequence[DrafterCandidate]) -> str:
    """The candidate for use without a server: the one most often right, which writes best on its own."""
    return max(candidates, key=lambda each: each.tokens_a_forward).name


CONTEXT_TOKENS = 128  # before the measured levels: a question and the first lines of its answer
LEVELS = 5
WIDEST_MS = 60_000.0  # a longer level is not a valid measurement


def level_ms(
    root: Path,
    fingerprint: str,
    breadth: int,
    load: Callable[[], tuple[DrafterConfig, ConversationDrafter | None] | CompanionState],
) -> float:
    """Time of a level of `breadth` nodes, or a block's for each of its levels; from the record if there is one.

    Args:
        root: the cache folder.
        fingerprint: of the drafter, hexadecimal.
        load: its configuration and an empty state (None for a kind that is not measured: 0), or the state of a
            companion; called only if the time is not known.
    """
    key = f"level-{fingerprint[:32]}-{variant_name()}-{threads()}-{breadth}"
    known = recall(root, key).get("ms")
    if isinstance(known, float) and math.isfinite(known) and 0 < known < WIDEST_MS:
        return known
    loaded = load()
    if isinstance(loaded, CompanionState):
        state: ConversationDrafter = loaded
        state.extend(_text(loaded.columns))
    else:
        config, drafter = loaded
        if drafter is None:
            return 0.0
        _prepare(drafter, config)
        state = drafter
    measured = _measure(state, breadth)
    remember(root, key, {"ms": measured})
    return measured


def _text(vocab_size: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(0).integers(0, vocab_size, CONTEXT_TOKENS)]


def _prepare(state: ConversationDrafter, config: DrafterConfig) -> None:
    rng = np.random.default_rng(0)
    state.extend(_text(config.vocab_size))
    rows = rng.standard_normal((CONTEXT_TOKENS - 1, config.memory_width), np.float32)
    state.append_memory(0, rows)
    if config.reused_layers:
        state.append_reused_state(0, rng.standard_normal((CONTEXT_TOKENS - 1, config.hidden_size), np.float32))


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


COMPANION = "companion"  # the choice of the companion to draft for the server too
NOBODY = "nobody"  # the choice of no drafter: the companion would be too slow, and only writes without a server


class DrafterCatalog:
    """Offers the drafters for one server's target.

    Args:
        companion: of this device, which may draft where --drafter leaves the choice open, or nobody else drafts.
        load: reads a checkpoint.
    """

    def __init__(
        self,
        settings: ClientSettings,
        sources: Sources,
        companion: Companion | None = None,
        load: Callable[[Path], Checkpoint] = load_checkpoint,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._load = load
        self._named = {
            each.name: each for each in meant_drafters(settings, sources.served) if each.fingerprint in sources.drafters
        }
        is_open = settings.drafter in (AUTO, NONE) or (means_served(settings) and not self._named)
        self._companion = companion if is_open else None
        self._candidates = self.measure() if len(self._named) + (self._companion is not None) > 1 else ()

    @property
    def is_empty(self) -> bool:
        return not self._named and self._companion is None

    def measure(self) -> tuple[DrafterCandidate, ...]:
        """The time of a level of each, also where there is nothing to choose."""
        return (*map(self._measured, self._named.values()), *self._measured_companion())

    def choose(self, server: ServerPace | None, current: str | None = None) -> DrafterChoice:
        """The drafter to use. `server`: None: it is unavailable; `current`: the one in use."""
        if not self._named:
            return self._choose_companion(server)
        drafters = [each for each in self._candidates if each.name in self._named]
        if len(self._named) == 1 and not (server and server.step_ms > 0 and drafters):
            only = next(iter(self._named))
            wished = self._settings.drafter != AUTO
            return DrafterChoice(only, "as wished" if wished else "the only one that the server gives memory for")
        if self._settings.drafting in ("server", "off"):
            reason = "this device does not draft for the server: the one that writes best by itself"
            return DrafterChoice(best_standalone(drafters), reason)
        if server is None:
            reason = "no server has said how fast it is: the one that writes best by itself"
            return DrafterChoice(best_standalone(drafters), reason)
        if server.step_ms <= 0:
            first = current or drafters[0].name
            return DrafterChoice(first, "the server has not said yet how fast it is: its first one")
        return choose([*drafters, *self._agreeing_companion()], server, current)

    def _choose_companion(self, server: ServerPace | None) -> DrafterChoice:
        """Whether the companion drafts too, where there is nobody else."""
        if server is None or server.step_ms <= 0:
            return DrafterChoice(COMPANION, "the only one here")
        [measured] = self._candidates or self._measured_companion()
        times = f"a level of its drafts takes {measured.level_ms:.0f} ms, a step of the server {server.step_ms:.0f} ms"
        if measured.level_ms >= server.step_ms:
            return DrafterChoice(NOBODY, f"the companion is too slow to draft for the server: {times}")
        return DrafterChoice(COMPANION, times)

    def checkpoint(self, name: str) -> Checkpoint:
        return self._load(self._sources.drafters[self._named[name].fingerprint])

    def standalone_for(self, name: str, online: Checkpoint) -> tuple[str, Checkpoint] | None:
        """The drafter that writes without a server, next to the one that drafts; None: there is no better one.

        Both must read the same memory rows, and the states that enter the deeper one's layers are those sent.

        `online`: the checkpoint of the drafter `name`.
        """
        drafters = [each for each in self._candidates if each.name in self._named]
        best = best_standalone(drafters) if drafters else name
        if best == name:
            return None
        standalone = self.checkpoint(best)
        shares = online.memory_fingerprint and online.memory_fingerprint == standalone.memory_fingerprint
        return (
            (best, standalone)
            if shares and 0 < online.config.reused_layers <= standalone.config.reused_layers
            else None
        )

    def _measured(self, drafter: pb.Drafter) -> DrafterCandidate:
        settings, files = self._settings, self._sources.files

        def load() -> tuple[DrafterConfig, ConversationDrafter | None]:
            checkpoint = self.checkpoint(drafter.name)
            is_timed = checkpoint.config.traits.is_timed
            return checkpoint.config, checkpoint.states(WeightReader(files), settings.dtype)() if is_timed else None

        took = level_ms(cache_root(settings.cache_dir), drafter.fingerprint.hex(), self._breadth, load)
        return DrafterCandidate(drafter.name, took, drafter.tokens_a_forward)

    def _measured_companion(self) -> tuple[DrafterCandidate, ...]:
        """The companion as a candidate; none where it may not draft."""
        companion = self._companion
        if companion is None:
            return ()
        root = cache_root(self._settings.cache_dir)
        took = level_ms(root, companion.fingerprint, self._breadth, companion.new_state)
        return (DrafterCandidate(COMPANION, took, companion.agreement.tokens_a_forward),)

    def _agreeing_companion(self) -> list[DrafterCandidate]:
        """The companion as it was measured, by what its drafts are worth now; none where it may not draft."""
        if self._companion is None:
            return []
        worth = self._companion.agreement.tokens_a_forward
        return [replace(each, tokens_a_forward=worth) for each in self._candidates if each.name not in self._named]

    @property
    def _breadth(self) -> int:
        return 1 if self._settings.mode == "chain" else self._settings.breadth

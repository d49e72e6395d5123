"""The drafters that this device may choose from: their checkpoints, the time of a level, how to load one.

State: the candidates, timed once; how often a companion is right is learnt meanwhile. No drafter is kept. With one
drafter there is nothing to choose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter import Checkpoint, DrafterConfig, DraftState, load_checkpoint
from moa_shared.drafter.companion.loading import Companion
from moa_shared.drafter.dflash.state import BlockState
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.weights.weights import WeightReader

from moa_client.device.drafter_choice import DrafterCandidate, DrafterChoice, ServerPace, best_alone, choose
from moa_client.device.drafter_speed import level_ms
from moa_client.device.sources import AUTO, NONE, Sources, means_served, meant_drafters
from moa_client.settings import ClientSettings

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
        """Whether there is no drafter at all."""
        return not self._named and self._companion is None

    def measure(self) -> tuple[DrafterCandidate, ...]:
        """The time of a level of each, also where there is nothing to choose."""
        return (*map(self._measured, self._named.values()), *self._measured_companion())

    def choose(self, server: ServerPace | None, current: str | None = None) -> DrafterChoice:
        """The drafter to use.

        Args:
            server: None: it is unavailable.
            current: the one in use.
        """
        if not self._named:
            return self._choose_companion(server)
        drafters = [each for each in self._candidates if each.name in self._named]
        if len(self._named) == 1 and not (server and server.step_ms > 0 and drafters):
            only = next(iter(self._named))
            wished = self._settings.drafter != AUTO
            return DrafterChoice(only, "as wished" if wished else "the only one that the server gives memory for")
        if self._settings.drafting in ("server", "off"):
            reason = "this device does not draft for the server: the one that writes best by itself"
            return DrafterChoice(best_alone(drafters), reason)
        if server is None:
            reason = "no server has said how fast it is: the one that writes best by itself"
            return DrafterChoice(best_alone(drafters), reason)
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
        """The checkpoint of a drafter."""
        return self._load(self._sources.drafters[self._named[name].fingerprint])

    def standalone_for(self, name: str, online: Checkpoint) -> tuple[str, Checkpoint] | None:
        """The drafter that writes without a server, next to the one that drafts; None: there is no better one.

        Both must read the same memory rows, and the states that enter the deeper one's layers are those sent.

        Args:
            online: the checkpoint of the drafter `name`.
        """
        drafters = [each for each in self._candidates if each.name in self._named]
        best = best_alone(drafters) if drafters else name
        if best == name:
            return None
        alone = self.checkpoint(best)
        shares = online.memory_fingerprint and online.memory_fingerprint == alone.memory_fingerprint
        return (best, alone) if shares and 0 < online.config.reused_layers <= alone.config.reused_layers else None

    def _measured(self, drafter: pb.Drafter) -> DrafterCandidate:
        settings, files = self._settings, self._sources.files

        def load() -> tuple[DrafterConfig, DraftState | BlockState | None]:
            checkpoint = self.checkpoint(drafter.name)
            state = checkpoint.states(WeightReader(files), settings.dtype)()
            return checkpoint.config, state if isinstance(state, DraftState | BlockState) else None

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
        """Nodes of a level."""
        return 1 if self._settings.mode == "chain" else self._settings.breadth

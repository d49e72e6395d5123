"""The time of a level of a draft on this device: measured when a drafter is first used, then remembered.

State: one record per drafter, kernels and threads in the cache folder. A damaged record is measured again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from moa_kernels import threads, variant_name
from moa_shared.drafter import DrafterConfig, DraftState
from moa_shared.drafter.companion.state import CompanionState
from moa_shared.drafter.dflash.state import BlockState
from moa_shared.models.sources.digest import recall, remember
from moa_shared.programs.elapsed import ms_since

CONTEXT_TOKENS = 128  # before the measured levels: a question and the first lines of its answer
LEVELS = 5
WIDEST_MS = 60_000.0  # a longer level is not a valid measurement


def level_ms(
    root: Path,
    fingerprint: str,
    breadth: int,
    load: Callable[[], tuple[DrafterConfig, DraftState | BlockState | None] | CompanionState],
) -> float:
    """Time of a level of `breadth` nodes, or a block's for each of its levels; from the record if there is one.

    Args:
        root: the cache folder.
        fingerprint: of the drafter, hexadecimal.
        load: its configuration and an empty state (None for a baseline, which is not measured: 0), or the state of a
            companion; called only if the time is not known.
    """
    key = f"level-{fingerprint[:32]}-{variant_name()}-{threads()}-{breadth}"
    known = recall(root, key).get("ms")
    if isinstance(known, float) and math.isfinite(known) and 0 < known < WIDEST_MS:
        return known
    loaded = load()
    if isinstance(loaded, CompanionState):
        state: DraftState | BlockState | CompanionState = loaded
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


def _prepare(state: DraftState | BlockState, config: DrafterConfig) -> None:
    """Gives a drafter a text, and memory of it."""
    rng = np.random.default_rng(0)
    state.extend(_text(config.vocab_size))
    rows = rng.standard_normal((CONTEXT_TOKENS - 1, config.memory_width), np.float32)
    state.append_memory(0, rows)
    if config.reused_layers:
        state.append_reused_state(0, rng.standard_normal((CONTEXT_TOKENS - 1, config.hidden_size), np.float32))


def _measure(state: DraftState | BlockState | CompanionState, breadth: int) -> float:
    """The median of some levels, each below the one before; of a block drafter that of some blocks, by level."""
    took = []
    if isinstance(state, BlockState):
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

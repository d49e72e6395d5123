"""A conversation's draft state as devices have it, and what a draft step takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from moa_shared.drafter import DraftState
from moa_shared.drafting import draft_chain
from moa_shared.sampling.settings import Sampling

from moa_bench.report.interleave import time_interleaved
from moa_bench.report.spread import Spread

if TYPE_CHECKING:
    from moa_shared.drafter import DraftDecoder

CHAIN = 5


def draft_step_ms(decoder: DraftDecoder, prefix: int = 128, repeats: int = 20) -> float:
    """Median time of a token of a chain, in ms."""
    state = filled_state(decoder, prefix)

    def draft() -> None:
        draft_chain(state, CHAIN, Sampling())

    taken = time_interleaved({"chain": draft}, repeats, reset=lambda: state.crop(prefix))
    return Spread.of(taken["chain"]).median / CHAIN


def filled_state(decoder: DraftDecoder, prefix: int) -> DraftState:
    """A conversation of so many tokens with all their memory rows, and a draft that has begun."""
    state = DraftState(decoder)
    state.extend([(7 * place + 11) % decoder.config.vocab_size for place in range(prefix)])
    remember_rows(state, 0, prefix - 1)
    state.begin()
    return state


def remember_rows(state: DraftState, start: int, stop: int) -> None:
    """Memory rows (and states for reused layers) of these positions; their content does not change what they cost."""
    config = state.decoder.config
    generator = np.random.default_rng(start)
    state.append_memory(start, generator.standard_normal((stop - start, config.memory_width), np.float32))
    if config.reused_layers:
        state.append_reused_state(start, generator.standard_normal((stop - start, config.hidden_size), np.float32))

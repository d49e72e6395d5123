"""What drafting costs on the device: one step of the draft decoder, and whole chains and trees."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from moa_server.verifier import Target
from moa_shared.drafter import DraftDecoder, DraftState
from moa_shared.drafting import draft_chain, draft_tree
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.sampling.settings import Sampling

from moa_bench.report.interleave import time_interleaved
from moa_bench.report.spread import Spread, paired_ratio

CHAIN = 5
FORWARD = "target forward"
NEW_TOKENS = 2  # committed since the last draft: an accepted one and the bonus token


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What one piece of drafting costs."""

    what: str
    ms: Spread
    ratio: Spread  # to a target forward of one token, pair by pair


def measure_drafting(target: Target, decoder: DraftDecoder, prefix: int, repeats: int) -> list[DraftCost]:
    """Greedy drafting after `prefix` tokens with all their memory rows.

    The first step of a draft also reads the tokens committed since the last one; it is timed for two of them.
    """
    state, greedy = filled_state(decoder, prefix), Sampling()
    small, paper = TreeShape(depth=4, breadth=4, nodes=24), TreeShape()
    level = paper.breadth
    whole: dict[str, Callable[[], object]] = {
        f"first step, {NEW_TOKENS} new tokens": state.begin,
        f"chain of {CHAIN}": lambda: draft_chain(state, CHAIN, greedy),
        f"tree of {small.nodes} nodes, depth {small.depth}": lambda: draft_tree(state, small, greedy),
        f"tree of {paper.nodes} nodes, depth {paper.depth}": lambda: draft_tree(state, paper, greedy),
    }
    further: dict[str, Callable[[], object]] = {
        "one more token of a chain": lambda: state.expand([1], [-1]),
        f"one level of {level} nodes": lambda: state.expand([1] * level, [-1] * level),
    }

    def commit() -> None:
        state.crop(prefix - NEW_TOKENS)
        state.extend([2] * NEW_TOKENS)
        remember_rows(state, prefix - NEW_TOKENS, prefix - 1)

    def commit_and_begin() -> None:
        commit()
        state.begin()

    cache = target.new_cache()
    target.prefill(cache, [11] * prefix)

    def forward() -> None:
        target.forward(cache, [7])
        cache.crop(prefix)

    costs: list[DraftCost] = []
    for pieces, reset in ((whole, commit), (further, commit_and_begin)):
        taken = time_interleaved({FORWARD: forward, **pieces}, repeats, reset=reset)
        costs += [DraftCost(name, Spread.of(taken[name]), paired_ratio(taken[name], taken[FORWARD])) for name in pieces]
    return costs


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

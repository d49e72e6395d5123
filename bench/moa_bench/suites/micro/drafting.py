"""What drafting costs on the device: one step of the draft decoder, and whole chains and trees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_bench.report.interleave import time_interleaved
from moa_bench.report.spread import Spread, paired_ratio

if TYPE_CHECKING:
    from moa_server.target import Target
    from moa_shared.drafter import DraftDecoder, DraftState

CHAIN = 5
_FORWARD = "target forward"
NEW_TOKENS = 2  # committed since the last draft: an accepted one and the bonus token


@dataclass(frozen=True, slots=True)
class DraftCost:
    """What one piece of drafting costs.

    Args:
        ratio: to a target forward of one token, pair by pair.
    """

    what: str
    ms: Spread
    ratio: Spread


def draft_step_ms(decoder: DraftDecoder, prefix: int = 128, repeats: int = 20) -> float:
    """Median time of a token of a chain, in ms."""
    from moa_shared.drafting import draft_chain
    from moa_shared.sampling.settings import Sampling

    state = filled_state(decoder, prefix)

    def draft() -> None:
        draft_chain(state, CHAIN, Sampling())

    taken = time_interleaved({"chain": draft}, repeats, reset=lambda: state.crop(prefix))
    return Spread.of(taken["chain"]).median / CHAIN


def measure_drafting(target: Target, decoder: DraftDecoder, prefix: int, repeats: int) -> list[DraftCost]:
    """Greedy drafting after `prefix` tokens with all their memory rows.

    The first step of a draft also reads the tokens committed since the last one; it is timed for two of them.
    """
    from moa_shared.drafting import draft_chain, draft_tree
    from moa_shared.drafting.dynamic_tree import TreeShape
    from moa_shared.sampling.settings import Sampling

    state = filled_state(decoder, prefix)
    greedy = Sampling()
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
        _remember(state, prefix - NEW_TOKENS, prefix - 1)

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
        taken = time_interleaved({_FORWARD: forward, **pieces}, repeats, reset=reset)
        costs += [
            DraftCost(name, Spread.of(taken[name]), paired_ratio(taken[name], taken[_FORWARD])) for name in pieces
        ]
    return costs


def filled_state(decoder: DraftDecoder, prefix: int) -> DraftState:
    """A conversation of so many tokens with all their memory rows, and a draft that has begun."""
    from moa_shared.drafter import DraftState

    state = DraftState(decoder)
    state.extend([(7 * place + 11) % decoder.config.vocab_size for place in range(prefix)])
    _remember(state, 0, prefix - 1)
    state.begin()
    return state


def _remember(state: DraftState, start: int, stop: int) -> None:
    """Memory rows (and states for reused layers) of these positions; their content does not change what they cost."""
    import numpy as np

    config = state.decoder.config
    generator = np.random.default_rng(start)
    state.append_memory(start, generator.standard_normal((stop - start, config.memory_width), np.float32))
    if config.reused_layers:
        state.append_reused_state(start, generator.standard_normal((stop - start, config.hidden_size), np.float32))

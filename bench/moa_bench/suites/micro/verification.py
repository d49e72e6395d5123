"""What a verification costs over the bare forward that it contains.

Bare: `Target.forward` of n tokens after a prefix, logits of all rows. Whole: with the choice of tokens, cutting the
cache to the accepted path, and encoding its memory rows. Both take turns, so that the ratio is one of pairs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from moa_server.verifier import Target
from moa_shared.sampling.coupling import select
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.arithmetic import below_chain

from moa_bench.report.interleave import time_interleaved
from moa_bench.report.spread import Spread, paired_ratio

TOKEN_COUNTS = (1, 8, 62)  # a plain step; a short draft; the paper's tree (arXiv 2410.03804, section 5)
TREE_DEPTH = 7  # of the paper's tree

Encode = Callable[[npt.NDArray[np.float32]], object]


@dataclass(frozen=True, slots=True)
class VerificationCost:
    """What one kind of verification costs."""

    shape: str  # "chain" or "tree"
    tokens: int  # fed at once, the newest committed one included
    encoded_rows: int  # accepted tokens whose memory rows were encoded
    bare_ms: Spread  # of the forward
    whole_ms: Spread  # of the verification
    ratio: Spread  # whole to bare, pair by pair


def draft_parents(nodes: int, depth: int) -> list[int]:
    """Parents of a draft tree: a path of `depth` nodes (0, 1, 2...), then siblings level by level, round and round."""
    path = min(nodes, depth)
    return [*range(-1, path - 1), *((node % path) - 1 for node in range(nodes - path))]


def measure_verification(
    target: Target, prefix: Sequence[int], encode: Encode, repeats: int, counts: Sequence[int] = TOKEN_COUNTS
) -> list[VerificationCost]:
    """Chains and trees of each of `counts` tokens after `prefix`.

    As many drafts are accepted as the paper's tree is deep (all of a shorter one), and their memory rows encoded with
    that of the newest token: the most work that an ordinary step brings.
    """
    return [
        _measure(target, prefix, encode, repeats, count, shape)
        for count in counts
        for shape in (("chain",) if count == 1 else ("chain", "tree"))
    ]


def _measure(
    target: Target, prefix: Sequence[int], encode: Encode, repeats: int, count: int, shape: str
) -> VerificationCost:
    tokens = [(7 * place + 11) % target.vocab_size for place in range(count)]
    parents = below_chain(1, draft_parents(count - 1, TREE_DEPTH)) if shape == "tree" else None
    accepted = list(range(min(count, TREE_DEPTH + 1)))
    start = len(prefix)
    positions = list(range(start + 1, start + 1 + count))
    cache = target.new_cache()
    target.prefill(cache, prefix)

    def run_bare() -> None:
        target.forward(cache, tokens, parents)

    def run_whole() -> None:
        select(target.forward(cache, tokens, parents).logits, positions, Sampling())
        cache.keep(accepted)
        encode(cache.lsa_input(start, start + len(accepted)))

    taken = time_interleaved({"bare": run_bare, "whole": run_whole}, repeats, reset=lambda: cache.crop(start))
    bare, whole = taken["bare"], taken["whole"]
    return VerificationCost(shape, count, len(accepted), Spread.of(bare), Spread.of(whole), paired_ratio(whole, bare))

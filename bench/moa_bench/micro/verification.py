"""What a verification costs over the bare forward of transformers that it contains.

Bare: the model's own forward of n tokens behind a prefix, with its own cache and attention, logits of all rows.
Ours: `Target.forward`, the choice of tokens, cutting the cache to the accepted path, and encoding its memory rows.
Both run the same weights in the same process and take turns, so that the ratio is one of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_bench.interleave import time_interleaved
from moa_bench.spread import Spread, paired_ratio

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from moa_server.target import Target
    from transformers import PreTrainedModel

TOKEN_COUNTS = (1, 8, 62)  # a plain step; a short draft; the paper's tree (arXiv 2410.03804, section 5)
TREE_DEPTH = 7  # of the paper's tree

Encode = Callable[["npt.NDArray[np.float32]"], object]


@dataclass(frozen=True, slots=True)
class VerificationCost:
    """One kind of verification.

    Args:
        shape: "chain" or "tree".
        tokens: fed at once, the newest committed one included.
        encoded_rows: accepted tokens whose memory rows were encoded.
        forward_ms: `Target.forward` and the choice of tokens, without `keep` and the memory rows.
        ratio: ours to bare, pair by pair; `forward_ratio` the same for `forward_ms`.
    """

    shape: str
    tokens: int
    encoded_rows: int
    bare_ms: Spread
    forward_ms: Spread
    ours_ms: Spread
    forward_ratio: Spread
    ratio: Spread


def draft_parents(nodes: int, depth: int) -> list[int]:
    """Parents of a draft tree: a path of `depth` nodes (0, 1, 2...), then siblings level by level, round and round."""
    path = min(nodes, depth)
    parents = list(range(-1, path - 1))
    return parents + [(node % path) - 1 for node in range(nodes - path)]


def measure_verification(
    target: Target,
    bare: PreTrainedModel,
    prefix: Sequence[int],
    encode: Encode,
    repeats: int,
    counts: Sequence[int] = TOKEN_COUNTS,
) -> list[VerificationCost]:
    """Chains and trees of each of `counts` tokens behind `prefix`.

    As many drafts are accepted as the paper's tree is deep (all of a shorter one), and their memory rows encoded with
    that of the newest token: the most work that an ordinary step brings.
    """
    costs = []
    for count in counts:
        shapes = {"chain": None} if count == 1 else {"chain": None, "tree": draft_parents(count - 1, TREE_DEPTH)}
        for shape, parents in shapes.items():
            costs.append(_measure(target, bare, prefix, encode, repeats, count, shape, parents))
    return costs


def _measure(
    target: Target,
    bare: PreTrainedModel,
    prefix: Sequence[int],
    encode: Encode,
    repeats: int,
    count: int,
    shape: str,
    parents: Sequence[int] | None,
) -> VerificationCost:
    import torch
    from moa_shared.coupling import Sampling, select
    from transformers import DynamicCache

    tokens = [(7 * place + 11) % target.vocab_size for place in range(count)]
    in_feed = None if parents is None else [-1, *(parent + 1 for parent in parents)]
    accepted = list(range(min(count, TREE_DEPTH + 1)))
    start = len(prefix)
    sampling = Sampling()
    positions = list(range(start + 1, start + 1 + count))
    ids = torch.tensor([tokens])
    cache = target.new_cache()
    target.prefill(cache, prefix)
    bare_cache = DynamicCache(config=bare.config)
    with torch.inference_mode():
        bare(torch.tensor([list(prefix)]), past_key_values=bare_cache, logits_to_keep=1)

    def reset() -> None:
        cache.crop(start)
        if grown := bare_cache.get_seq_length() - start:
            bare_cache.crop(-grown)

    def run_bare() -> None:
        with torch.inference_mode():
            bare(ids, past_key_values=bare_cache)

    def run_forward() -> None:
        select(target.forward(cache, tokens, in_feed).logits, positions, sampling)

    def run_ours() -> None:
        select(target.forward(cache, tokens, in_feed).logits, positions, sampling)
        cache.keep(accepted)
        encode(cache.lsa_input(start, start + len(accepted)))

    taken = time_interleaved({"bare": run_bare, "forward": run_forward, "ours": run_ours}, repeats, reset=reset)
    return VerificationCost(
        shape,
        count,
        len(accepted),
        Spread.of(taken["bare"]),
        Spread.of(taken["forward"]),
        Spread.of(taken["ours"]),
        paired_ratio(taken["forward"], taken["bare"]),
        paired_ratio(taken["ours"], taken["bare"]),
    )

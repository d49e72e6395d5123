"""The paper's dynamic tree: the best frontier nodes are expanded level by level, the best of all candidates are sent.

EAGLE-2 (arXiv 2406.16858), section 4; used unchanged by Mixture of Attentions (arXiv 2410.03804).
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.drafting.base import Drafter
from moa_shared.drafting.guesses.copying import LEAST_LOG_SURVIVAL
from moa_shared.drafting.guesses.text_guesser import TextGuesser
from moa_shared.drafting.pool import CandidatePool
from moa_shared.sampling.coupling import draft_candidates
from moa_shared.sampling.penalties import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree


@dataclass(frozen=True, slots=True)
class TreeShape:
    """How large a tree is.

    Args:
        depth: levels of the tree (the authors' depth parameter is one more).
        breadth: candidates of each expanded node, and nodes expanded per level.
        nodes: sent to the target.
    """

    depth: int = 6
    breadth: int = 8
    nodes: int = 62


def draft_tree(
    drafter: Drafter, shape: TreeShape, sampling: Sampling, guesser: TextGuesser | None = None
) -> tuple[DraftTree, CandidatePool, list[int]]:
    """A tree below the newest committed token, its candidate pool, and each node's index there.

    Args:
        guesser: of the same conversation, to merge with the drafter's candidates (not in the paper); what the text
            suggests may go deeper than the drafter was asked to.
    """
    pool = CandidatePool()
    depth = min(shape.depth, drafter.most_depth or shape.depth)
    added: dict[int, int] = {ROOT: ROOT}  # pool index to the drafter's node number
    frontier = [ROOT]
    logits = drafter.begin()
    for level in range(depth):
        positions = [drafter.next_position + level] * len(frontier)
        before = TextBefore(drafter.tokens, [pool.path_to(at) for at in frontier]) if sampling.reads_text else None
        scores, tokens = draft_candidates(logits, positions, sampling, shape.breadth, drafter.token_ids, before)
        new: list[int] = []
        for parent, row_tokens, row_scores in zip(frontier, tokens.tolist(), scores.tolist(), strict=True):
            new += pool.add(parent, row_tokens, row_scores)
        if level + 1 == depth:
            break
        frontier = [index for index in pool.best(new, shape.breadth) if pool.scores[index] > float("-inf")]
        if not frontier:
            break
        logits = drafter.expand(
            [pool.tokens[index] for index in frontier], [added[pool.parents[index]] for index in frontier]
        )
        for index in frontier:
            added[index] = len(added) - 1
    if guesser is not None:
        pool.add_guesses(guesser, shape.nodes, LEAST_LOG_SURVIVAL)
    tree, chosen = pool.tree(shape.nodes)
    return tree, pool, chosen

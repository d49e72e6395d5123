"""Drafting: chains and the paper's dynamic trees, over any drafter."""

from moa_shared.drafting.base import Drafter
from moa_shared.drafting.chain import draft_chain
from moa_shared.drafting.dynamic_tree import draft_tree
from moa_shared.drafting.pool import CandidatePool

__all__ = ["CandidatePool", "Drafter", "draft_chain", "draft_tree"]

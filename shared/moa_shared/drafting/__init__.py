"""Drafting: chains, the paper's dynamic trees, drafts that grow while they are verified, and prompt look-up."""

from moa_shared.drafting.base import ConversationDrafter, Drafter, GrowingDrafter
from moa_shared.drafting.chain import draft_chain
from moa_shared.drafting.conversation_draft import ConversationDraft
from moa_shared.drafting.copying import CopyGuesser
from moa_shared.drafting.dynamic_tree import TreeShape, draft_tree
from moa_shared.drafting.growing import CHAIN, GrowingDraft, Growth, GrowthShape
from moa_shared.drafting.lookup import TextIndex
from moa_shared.drafting.pool import CandidatePool
from moa_shared.drafting.repetition import barred_after

__all__ = [
    "CHAIN",
    "CandidatePool",
    "ConversationDraft",
    "ConversationDrafter",
    "CopyGuesser",
    "Drafter",
    "GrowingDraft",
    "GrowingDrafter",
    "Growth",
    "GrowthShape",
    "TextIndex",
    "TreeShape",
    "barred_after",
    "draft_chain",
    "draft_tree",
]

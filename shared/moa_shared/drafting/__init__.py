"""Drafting: chains, the paper's dynamic trees, drafts that grow while they are verified, prompt look-up and n-grams."""

from moa_shared.drafting.base import ConversationDrafter, Drafter, GrowingDrafter
from moa_shared.drafting.conversation_draft import ConversationDraft, barred_after
from moa_shared.drafting.dynamic_tree import CandidatePool, TreeShape, draft_chain, draft_tree
from moa_shared.drafting.growing import CHAIN, GrowingDraft, Growth, GrowthShape
from moa_shared.drafting.guesses import NgramTable, TextGuesser, TextIndex

__all__ = [
    "CHAIN",
    "CandidatePool",
    "ConversationDraft",
    "ConversationDrafter",
    "Drafter",
    "GrowingDraft",
    "GrowingDrafter",
    "Growth",
    "GrowthShape",
    "NgramTable",
    "TextGuesser",
    "TextIndex",
    "TreeShape",
    "barred_after",
    "draft_chain",
    "draft_tree",
]

"""Drafting: chains, the paper's dynamic trees, drafts that grow while they are verified, prompt look-up and n-grams."""

from moa_shared.drafting.base import ConversationDrafter, Drafter, GrowingDrafter
from moa_shared.drafting.chain import draft_chain
from moa_shared.drafting.conversation_draft import ConversationDraft
from moa_shared.drafting.dynamic_tree import TreeShape, draft_tree
from moa_shared.drafting.growing import CHAIN, GrowingDraft, Growth, GrowthShape
from moa_shared.drafting.guesses.lookup import TextIndex
from moa_shared.drafting.guesses.ngrams import NgramTable
from moa_shared.drafting.guesses.text_guesser import TextGuesser
from moa_shared.drafting.pool import CandidatePool
from moa_shared.drafting.repetition import barred_after

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

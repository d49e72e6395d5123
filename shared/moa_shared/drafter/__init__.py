"""The drafter network in two halves: the memory encoder (server) and the draft decoder (client)."""

from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, fresh_tensors, load_checkpoint, save_checkpoint
from moa_shared.drafter.kinds import KINDS, DrafterConfig
from moa_shared.drafter.layers.weights import ArrayWeights
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.models.network.network import Weights

__all__ = [
    "KINDS",
    "ArrayWeights",
    "Checkpoint",
    "ConversationDrafter",
    "DrafterConfig",
    "Weights",
    "fresh_tensors",
    "load_checkpoint",
    "save_checkpoint",
]

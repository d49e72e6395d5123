"""The drafter network in two halves: the memory encoder (server) and the draft decoder (client)."""

from moa_shared.drafter.baseline.state import BaselineState
from moa_shared.drafter.checkpoint.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.initialise import fresh_tensors
from moa_shared.drafter.checkpoint.weights import ArrayWeights
from moa_shared.drafter.decoder import DraftDecoder
from moa_shared.drafter.state import DraftState
from moa_shared.models.network.layers import Weights

__all__ = [
    "ArrayWeights",
    "BaselineState",
    "Checkpoint",
    "DraftDecoder",
    "DraftState",
    "DrafterConfig",
    "Weights",
    "fresh_tensors",
    "load_checkpoint",
    "save_checkpoint",
]

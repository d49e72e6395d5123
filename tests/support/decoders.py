"""Small draft decoders over random weights: of sizes that the kernels take, and of others."""

from typing import Any

import numpy as np
import numpy.typing as npt
from moa_shared.drafter.checkpoint import Checkpoint
from moa_shared.drafter.kinds import DrafterConfig
from moa_shared.drafter.kinds.moa_decoder import DraftDecoder, DraftState
from moa_shared.models.network.network import Weights

from tests.support.tiny_models import tiny_model

Rows = npt.NDArray[np.float32]

ODD = DrafterConfig(
    vocab_size=30, hidden_size=16, target_layers=4, target_heads=4, target_kv_heads=2, target_head_dim=4, sa_kv_heads=2,
    sa_mlp=24, ca_kv_heads=1, ca_mlp=20, lsa_heads=2, lsa_kv_heads=1, lsa_mlp=12, target_fingerprint="ab",
)  # fmt: skip
EVEN = DrafterConfig(
    vocab_size=30, hidden_size=64, target_layers=4, target_heads=4, target_kv_heads=2, target_head_dim=32,
    sa_kv_heads=2, sa_mlp=96, ca_kv_heads=1, ca_mlp=64, lsa_heads=4, lsa_kv_heads=2, lsa_mlp=64,
)  # fmt: skip


def normal(*shape: int, seed: int) -> Rows:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def target_arrays(config: DrafterConfig, inner: int = 32) -> dict[str, npt.NDArray[Any]]:
    """The target's parts: random, with a tied head."""
    made = tiny_model(
        seed=7, vocab_size=config.vocab_size, hidden_size=config.hidden_size, intermediate_size=inner,
        num_hidden_layers=config.target_layers, num_attention_heads=config.target_heads,
        num_key_value_heads=config.target_kv_heads, head_dim=config.target_head_dim, tie_word_embeddings=True,
    )  # fmt: skip
    arrays = {name: array * 0.5 if "_proj" in name else array for name, array in made.tensors.items()}
    return arrays | {"lm_head.weight": arrays["model.embed_tokens.weight"]}


def decoder_of(checkpoint: Checkpoint, target: Weights, weights: str = "int8", **parts: Any) -> DraftDecoder:
    """The device's half of a Mixture of Attentions drafter."""
    state = checkpoint.states(target, weights, **parts)()
    assert isinstance(state, DraftState)
    return state.decoder


def encoder_of(checkpoint: Checkpoint, dtype: Any, device: Any = None) -> Any:
    """The server's half of it in torch."""
    from moa_shared.drafter.kinds.torch_layers import MemoryEncoder

    return MemoryEncoder(checkpoint.config, checkpoint.torch_tensors(), dtype, device)

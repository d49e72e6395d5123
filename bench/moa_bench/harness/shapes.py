"""Shapes of published models: SmolLM2-135M, Llama 3.2 (1B, 3B), Llama 3.1 (8B), Qwen3-30B-A3B and Qwen3.5-9B. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Llama, of a Qwen3 with experts, or of a Qwen3.5 (a hybrid)."""

    hidden: int
    layers: int
    inner: int  # width of the MLP, or of each expert's
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool = True
    experts: int = 0  # of each layer, `used` of which a token has; 0: there are none
    used: int = 0
    wide_heads: int = 0  # numbers of a head, where heads together are wider than the hidden size; 0: they are not
    state_heads: int = 0  # of the gated delta nets that all layers but each fourth have; 0: all have attention
    state_key_heads: int = 0
    state_dim: int = 128  # of their keys and values

    @property
    def head_dim(self) -> int:
        return self.wide_heads or self.hidden // self.heads

    @property
    def architecture(self) -> str:
        return "qwen35" if self.state_heads else "qwen3moe" if self.experts else "llama"


SHAPES = {
    "135m": ModelShape(576, 30, 1536, 9, 3, 49152, 8192),
    "1b": ModelShape(2048, 16, 8192, 32, 8, 128256, 131072),
    "3b": ModelShape(3072, 28, 8192, 24, 8, 128256, 131072),
    "8b": ModelShape(4096, 32, 14336, 32, 8, 128256, 131072, tied=False),
    "30b-a3b": ModelShape(2048, 48, 768, 32, 4, 151936, 40960, tied=False, experts=128, used=8, wide_heads=128),
    "qwen3.5-9b": ModelShape(
        4096, 32, 12288, 16, 4, 248320, 262144, tied=False, wide_heads=256, state_heads=32, state_key_heads=16
    ),
}
ATTENTION_EACH = 4  # layers of a hybrid, of which the last has attention
# Of oracles that draft for such models, a token: about what published drafters reach.
ACCEPTANCES = (0.6, 0.7, 0.8)

"""Shapes of published models, and how llama.cpp mixes formats in files of a type. Pure.

The shapes are those of SmolLM2-135M, Llama 3.2 (1B, 3B), Llama 3.1 (8B) and Qwen3-30B-A3B.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a Llama, or of a Qwen3 with experts."""

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

    @property
    def head_dim(self) -> int:
        return self.wide_heads or self.hidden // self.heads

    @property
    def architecture(self) -> str:
        """As llama.cpp calls it."""
        return "qwen3moe" if self.experts else "llama"


@dataclass(frozen=True, slots=True)
class FormatMixture:
    """Which tensors are stored how."""

    number: int  # llama.cpp's, of `general.file_type`
    base: str  # of most matrices
    head: str  # of the head, and of embeddings that are the head too
    more: str  # of values and of the MLP's output in every third layer, and in the first and last eighth


SHAPES = {
    "135m": ModelShape(576, 30, 1536, 9, 3, 49152, 8192),
    "1b": ModelShape(2048, 16, 8192, 32, 8, 128256, 131072),
    "3b": ModelShape(3072, 28, 8192, 24, 8, 128256, 131072),
    "8b": ModelShape(4096, 32, 14336, 32, 8, 128256, 131072, tied=False),
    "30b-a3b": ModelShape(2048, 48, 768, 32, 4, 151936, 40960, tied=False, experts=128, used=8, wide_heads=128),
}
# Milliseconds of a plain step on a core of an AMD EPYC with AVX-512 VNNI, in Q4_K_M (docs/measurements/engine.md).
STEPS_MS = {"135m": 8, "gemma3-270m": 16, "1b": 36, "3b": 100, "8b": 205, "30b-a3b": 90}
READ_SHARE = 0.25  # of a step that a token of a prompt takes
SLOW_STEP_S = 0.012  # from here on a target is taken for one that has no drafter, so that oracles draft


def step_s(target: str) -> float:
    """About what a plain step of a shape or model takes, in seconds; of any other model: as the default one."""
    return STEPS_MS.get(target, 10) / 1e3


# Of oracles that draft for such models, a token: about what published drafters reach.
ACCEPTANCES = (0.6, 0.7, 0.8)
USUAL_FORMAT = "q4_k_m"
FORMATS = {
    "q4_0": FormatMixture(2, "Q4_0", "Q6_K", "Q4_0"),
    "q4_1": FormatMixture(3, "Q4_1", "Q6_K", "Q4_1"),
    "q8_0": FormatMixture(7, "Q8_0", "Q8_0", "Q8_0"),
    "q4_k_m": FormatMixture(15, "Q4_K", "Q6_K", "Q6_K"),
    "q5_k_m": FormatMixture(17, "Q5_K", "Q6_K", "Q6_K"),
    "q6_k": FormatMixture(18, "Q6_K", "Q6_K", "Q6_K"),
    "iq4_xs": FormatMixture(30, "IQ4_XS", "Q6_K", "IQ4_XS"),
    "mxfp4": FormatMixture(38, "MXFP4", "Q8_0", "MXFP4"),
}

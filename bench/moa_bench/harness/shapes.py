"""Shapes of published models (SmolLM2, Llama 3.2 and 3.1), and how llama.cpp mixes formats in files of a type. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    hidden: int
    layers: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool = True

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Mixture:
    """Which tensors are stored how.

    Args:
        number: llama.cpp's, of `general.file_type`.
        base: of most matrices; `head`: of the head, and of embeddings that are the head too.
        more: of values and of the MLP's output in every third layer, and in the first and last eighth.
    """

    number: int
    base: str
    head: str
    more: str


SHAPES = {
    "135m": Shape(576, 30, 1536, 9, 3, 49152, 8192),
    "1b": Shape(2048, 16, 8192, 32, 8, 128256, 131072),
    "3b": Shape(3072, 28, 8192, 24, 8, 128256, 131072),
    "8b": Shape(4096, 32, 14336, 32, 8, 128256, 131072, tied=False),
}
FORMATS = {
    "q4_0": Mixture(2, "Q4_0", "Q6_K", "Q4_0"),
    "q4_1": Mixture(3, "Q4_1", "Q6_K", "Q4_1"),
    "q8_0": Mixture(7, "Q8_0", "Q8_0", "Q8_0"),
    "q4_k_m": Mixture(15, "Q4_K", "Q6_K", "Q6_K"),
    "q5_k_m": Mixture(17, "Q5_K", "Q6_K", "Q6_K"),
    "q6_k": Mixture(18, "Q6_K", "Q6_K", "Q6_K"),
    "iq4_xs": Mixture(30, "IQ4_XS", "Q6_K", "IQ4_XS"),
    "mxfp4": Mixture(38, "MXFP4", "Q8_0", "MXFP4"),
}

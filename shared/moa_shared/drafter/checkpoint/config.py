"""Shapes and options of one drafter. Pure data: JSON in the checkpoint's metadata, checked where it is read."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any

from moa_shared.errors import CheckpointError
from moa_shared.models.network.family import MOST_LAYERS
from moa_shared.text.json_text import parse_json
from moa_shared.text.plain_text import plain_line

MOA, EAGLE2, INDEPENDENT = "moa", "eagle2", "independent"
MOST_SHOWN = 80  # characters of a wrong value in a message
_MOST = 1 << 31  # of any number: no file holds a tensor of such a size


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A Mixture of Attentions drafter (arXiv 2410.03804) for one target.

    Args:
        vocab_size, hidden_size, target_layers, target_heads, target_kv_heads, target_head_dim: of the target.
        target_kv_width: numbers of one token's key and value in the target's widest layer; 0: all layers have
            `target_kv_heads` of `target_head_dim`.
        sa_*, ca_*: key/value heads and MLP width of self- and cross-attention; their query heads and head dimension are
            the target's.
        lsa_heads, lsa_kv_heads, lsa_mlp: of layer self-attention, whose width is the target's KV width; its head
            dimension is that width // lsa_heads.
        rms_norm_eps, rope_parameters: the target's (transformers' `rope_parameters`), for all three attentions, so that
            rope scaling is the same everywhere.
        unscaled_memory_rope: the authors' mistake, for their own checkpoints: cross-attention and layer self-attention
            keep the target's theta but lose its scaling (Llama 3.1).
        reused_layers: N, the target's last layers that the drafter runs too.
        draft_vocab: how many tokens the drafter can propose; 0: all of the target's.
        output_norm: the drafter owns a norm before the head (N = 0 only; the authors apply the head bare).
        max_block: the longest run of tokens beyond its memory that it was trained for.
        target_fingerprint: hexadecimal sha256 of the target; empty where unknown.
        kind: moa, or a baseline: eagle2, or independent (`own_layers` layers of its own); the layers of baselines have
            the sizes of `sa_*`, and `ca_*` and `lsa_*` mean nothing to them.
        lsa: False, an ablation: the memory is the target's last hidden state.
        input_norm, fc_bias, qkv_bias: of eagle2, as its authors publish it: no norm before the attention, and biases
            where the checkpoint has them.
    """

    vocab_size: int
    hidden_size: int
    target_layers: int
    target_heads: int
    target_kv_heads: int
    target_head_dim: int
    sa_kv_heads: int
    sa_mlp: int
    ca_kv_heads: int
    ca_mlp: int
    lsa_heads: int
    lsa_kv_heads: int
    lsa_mlp: int
    rms_norm_eps: float = 1e-5
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    unscaled_memory_rope: bool = False
    reused_layers: int = 0
    draft_vocab: int = 0
    output_norm: bool = False
    max_block: int = 15
    target_fingerprint: str = ""
    kind: str = MOA
    own_layers: int = 1
    lsa: bool = True
    input_norm: bool = True
    fc_bias: bool = False
    qkv_bias: bool = False
    target_kv_width: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        checks = {
            "lsa_heads must divide the KV width": self.kv_width % self.lsa_heads == 0,
            "the LSA head dimension must be even (rotary)": (self.kv_width // self.lsa_heads) % 2 == 0,
            "lsa_kv_heads must divide lsa_heads": self.lsa_heads % self.lsa_kv_heads == 0,
            "sa_kv_heads must divide the target's heads": self.target_heads % self.sa_kv_heads == 0,
            "ca_kv_heads must divide the target's heads": self.target_heads % self.ca_kv_heads == 0,
            "the target's head dimension must be even (rotary)": self.target_head_dim % 2 == 0,
            "target_kv_heads must divide the target's heads": self.target_heads % self.target_kv_heads == 0,
            "reused_layers must be less than the target's layers": self.reused_layers < self.target_layers,
            "draft_vocab must be 0 to vocab_size": self.draft_vocab <= self.vocab_size,
            "output_norm precedes the head only where no layers are reused": not (
                self.output_norm and self.reused_layers
            ),
            "kind must be moa, eagle2 or independent": self.kind in (MOA, EAGLE2, INDEPENDENT),
            "only moa reuses layers": self.kind == MOA or not self.reused_layers,
            "only eagle2 lacks an input norm or has biases": self.kind == EAGLE2
            or (self.input_norm and not self.fc_bias and not self.qkv_bias),
        }
        for rule, holds in checks.items():
            if not holds:
                raise CheckpointError(f"The drafter's configuration is wrong: {rule}.", hint="Correct that value.")

    @property
    def kv_width(self) -> int:
        """Numbers of one token's key and value in one target layer: the widest, where they differ."""
        return self.target_kv_width or 2 * self.target_kv_heads * self.target_head_dim

    @property
    def memory_width(self) -> int:
        """Numbers of a memory row on the wire: un-rotated cross-attention keys, then values; the target's last hidden
        state for EAGLE-2, nothing for an independent model.
        """
        if self.kind != MOA:
            return self.hidden_size if self.kind == EAGLE2 else 0
        return 2 * self.ca_kv_heads * self.target_head_dim

    @property
    def token_bytes(self) -> int:
        """What a conversation's drafter holds of a token: keys and values in float16, and rows in float32."""
        if self.kind == MOA:
            heads = self.sa_kv_heads + self.ca_kv_heads + self.reused_layers * self.target_kv_heads
            rows = 1 if self.reused_layers else 0
        else:
            heads, rows = self.own_layers * self.sa_kv_heads, 2
        return 4 * heads * self.target_head_dim + 4 * rows * self.hidden_size

    @property
    def reads_last_hidden(self) -> bool:
        """Memory rows are made from the target's last hidden state (after its final norm), not its keys and values."""
        return self.kind == EAGLE2 or (self.kind == MOA and not self.lsa)

    @property
    def memory_rope(self) -> dict[str, Any]:
        """Rotary parameters of cross-attention and layer self-attention."""
        if not self.unscaled_memory_rope:
            return self.rope_parameters
        return {"rope_type": "default", "rope_theta": self.rope_parameters["rope_theta"]}

    def to_json(self) -> str:
        values = dataclasses.asdict(self)
        if not self.target_kv_width:  # which earlier versions do not know
            del values["target_kv_width"]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DrafterConfig:
        """Reads a configuration; raises CheckpointError if `text` is none."""
        try:
            return cls(**parse_json(text))
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"The checkpoint's drafter configuration cannot be read ({error}).") from None


_MAY_BE_ZERO = ("reused_layers", "draft_vocab", "target_kv_width")
_LAYERS = ("target_layers", "reused_layers", "own_layers")


def _check_types(config: DrafterConfig) -> None:
    """Raises CheckpointError for a value of the wrong type or sign: configurations are read from files."""
    for entry in dataclasses.fields(config):
        value = getattr(config, entry.name)
        if entry.type == "int":
            least = 0 if entry.name in _MAY_BE_ZERO else 1
            most = MOST_LAYERS if entry.name in _LAYERS else _MOST
            right = type(value) is int and least <= value <= most
            wanted = f"a whole number of at least {least}" + (f", at most {most}" if entry.name in _LAYERS else "")
        elif entry.type == "bool":
            right, wanted = isinstance(value, bool), "true or false"
        elif entry.type == "str":
            right, wanted = isinstance(value, str), "text"
        elif entry.type == "float":
            right, wanted = isinstance(value, int | float) and 0 < value < math.inf, "a positive number"
        else:
            theta = value.get("rope_theta") if isinstance(value, dict) else None
            right, wanted = (
                isinstance(theta, int | float) and 0 < theta < math.inf,
                "an object with a positive rope_theta",
            )
        if not right:
            raise CheckpointError(
                f"The drafter's configuration is wrong: {entry.name} is {_shown(value)}, expected {wanted}.",
                hint="Correct that value.",
            )


def _shown(value: object) -> str:
    """A value, clipped to fit in a sentence."""
    return plain_line(repr(value), MOST_SHOWN)

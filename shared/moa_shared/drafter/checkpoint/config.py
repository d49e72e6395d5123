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

MOA, EAGLE2, INDEPENDENT, EAGLE3, DFLASH = "moa", "eagle2", "independent", "eagle3", "dflash"
KINDS = (MOA, EAGLE2, INDEPENDENT, EAGLE3, DFLASH)
OF_STATES = (EAGLE3, DFLASH)  # kinds whose memory rows are made from the inputs of some of the target's layers
JOINT, EACH = "joint", "each"  # the norms that there may be before EAGLE-3's projection: of all states, or one for each
MOST_SHOWN = 80  # characters of a wrong value in a message
MOST_BLOCK_ROWS = 64  # published: up to 16
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
        kind: moa; a baseline: eagle2, or independent (`own_layers` layers of its own); eagle3 or dflash, as they are
            published (`own_layers` layers). The layers of all but moa have the sizes of `sa_*`, and `ca_*` and `lsa_*`
            mean nothing to them.
        lsa: False: the memory is made from `state_entries`; without these, an ablation, it is the target's last hidden
            state.
        ca: False, an ablation of moa without lsa and state_entries: no cross-attention but its MLP, and so
            no memory.
        input_norm, fc_bias: of eagle2, as its authors publish it: no norm before the attention, and a bias where the
            checkpoint has one.
        qkv_bias: of eagle2, eagle3 and dflash: queries, keys and values have biases; of dflash what leaves the
            attention has one too.
        state_entries: of eagle3, dflash, and moa without lsa: which of the target's hidden states a memory row is made
            from, in that order: 0 its embeddings, e the output of layer e - 1, before the final norm.
        target_hidden_size: the width of those states, if it is not `hidden_size`, which is the drafter's; 0: it is.
        own_heads, own_head_dim: of eagle3 and dflash; 0: the target's.
        own_embeddings: of eagle3: the checkpoint holds embeddings; otherwise they are the target's.
        head_norms: of eagle3 and dflash: queries and keys of each head are normed, as in Qwen3.
        feature_norm: of eagle3: "joint", all states of a token are normed as one row before the projection; "each",
            each has a norm of its own (EAGLE-3.1); "", neither.
        normed_residual: of eagle3: the first layer adds to its normed input (speculators' norm_before_residual).
        normed_feedback: of eagle3: its own states are fed back after its final norm (norm_output of EAGLE-3.1).
        block_size: of dflash: the rows of a block, which is the newest token and then `mask_token` again and again.
        anchor_guesses: of dflash: a row guesses the token after its own position, so that the newest token's row
            guesses too (sample_from_anchor); otherwise it guesses the token at its position.
        markov_rank: of dflash: width of the factors of what a token adds to the logits of the next one (DSpark); 0:
            nothing is added.
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
    state_entries: tuple[int, ...] = ()
    target_hidden_size: int = 0
    own_heads: int = 0
    own_head_dim: int = 0
    own_embeddings: bool = False
    head_norms: bool = False
    feature_norm: str = ""
    normed_residual: bool = False
    normed_feedback: bool = False
    block_size: int = 0
    mask_token: int = 0
    anchor_guesses: bool = False
    markov_rank: int = 0
    ca: bool = True

    def __post_init__(self) -> None:
        _check_types(self)
        checks = {
            "lsa_heads must divide the KV width": self.kv_width % self.lsa_heads == 0,
            "the LSA head dimension must be even (rotary)": (self.kv_width // self.lsa_heads) % 2 == 0,
            "lsa_kv_heads must divide lsa_heads": self.lsa_heads % self.lsa_kv_heads == 0,
            "sa_kv_heads must divide the heads": self.heads % self.sa_kv_heads == 0,
            "the head dimension must be even (rotary)": self.head_dim % 2 == 0,
            "ca_kv_heads must divide the target's heads": self.target_heads % self.ca_kv_heads == 0,
            "the target's head dimension must be even (rotary)": self.target_head_dim % 2 == 0,
            "target_kv_heads must divide the target's heads": self.target_heads % self.target_kv_heads == 0,
            "reused_layers must be less than the target's layers": self.reused_layers < self.target_layers,
            "draft_vocab must be 0 to vocab_size": self.draft_vocab <= self.vocab_size,
            "output_norm precedes the head only where no layers are reused": not (
                self.output_norm and self.reused_layers
            ),
            f"kind must be one of {', '.join(KINDS)}": self.kind in KINDS,
            "only moa reuses layers": self.kind == MOA or not self.reused_layers,
            "only eagle2 lacks an input norm or has a bias of fc": self.kind == EAGLE2
            or (self.input_norm and not self.fc_bias),
            "only eagle2, eagle3 and dflash have qkv_bias": self.kind in (EAGLE2, *OF_STATES) or not self.qkv_bias,
            "eagle3 and dflash read the states of layers, and moa without lsa may": (self.kind in OF_STATES)
            == bool(self.state_entries)
            or (self.kind == MOA and not self.lsa),
            "without ca there is no memory to make": self.ca
            or (self.kind == MOA and not self.lsa and not self.state_entries),
            "state_entries must be 0 to target_layers": all(
                0 <= each <= self.target_layers for each in self.state_entries
            ),
            "only eagle3 and dflash have sizes, embeddings or head norms of their own": self.kind in OF_STATES
            or not (
                self.target_hidden_size or self.own_heads or self.own_head_dim or self.own_embeddings or self.head_norms
            ),
            "embeddings of another width than the target's must be own_embeddings": self.kind != EAGLE3
            or self.own_embeddings
            or self.state_width == self.hidden_size,
            "feature_norm must be joint, each or empty": self.feature_norm in ("", JOINT, EACH),
            "only eagle3 has feature_norm, normed_residual and normed_feedback": self.kind == EAGLE3
            or not (self.feature_norm or self.normed_residual or self.normed_feedback),
            "dflash, and nothing else, has a block_size": (self.kind == DFLASH) == (self.block_size > 0),
            f"a block has at most {MOST_BLOCK_ROWS} rows, of which one or more guess": self.kind != DFLASH
            or (self.block_levels > 0 and self.block_size <= MOST_BLOCK_ROWS),
            "mask_token must be a token of the vocabulary": self.mask_token < self.vocab_size,
            "only dflash has mask_token, anchor_guesses and markov_rank": self.kind == DFLASH
            or not (self.mask_token or self.anchor_guesses or self.markov_rank),
            "dflash is as wide as the target and takes its embeddings": self.kind != DFLASH
            or (self.state_width == self.hidden_size and not self.own_embeddings),
        }
        for rule, holds in checks.items():
            if not holds:
                raise CheckpointError(f"The drafter's configuration is wrong: {rule}.", hint="Correct that value.")

    @property
    def kv_width(self) -> int:
        """Numbers of one token's key and value in one target layer: the widest, where they differ."""
        return self.target_kv_width or 2 * self.target_kv_heads * self.target_head_dim

    @property
    def method(self) -> str:
        """What tables call it."""
        names = {EAGLE2: "EAGLE-2", INDEPENDENT: "independent", EAGLE3: "EAGLE-3"}
        names[DFLASH] = "DSpark" if self.markov_rank else "DFlash"
        return names.get(self.kind, f"MoA, N = {self.reused_layers}{'' if self.ca else ', no CA'}")

    @property
    def heads(self) -> int:
        """Query heads of its own layers."""
        return self.own_heads or self.target_heads

    @property
    def head_dim(self) -> int:
        """Numbers of a head of its own layers."""
        return self.own_head_dim or self.target_head_dim

    @property
    def state_width(self) -> int:
        """Numbers of one of the target's hidden states."""
        return self.target_hidden_size or self.hidden_size

    @property
    def block_levels(self) -> int:
        """The tokens that one block guesses; 0: the drafter guesses one after the other."""
        return self.block_size if self.anchor_guesses else max(0, self.block_size - 1)

    @property
    def memory_width(self) -> int:
        """Numbers of a memory row on the wire: un-rotated cross-attention keys, then values; the target's last hidden
        state for EAGLE-2; what EAGLE-3 and DFlash project the target's states to; nothing for an independent model, and
        without cross-attention.
        """
        if self.kind != MOA:
            return 0 if self.kind == INDEPENDENT else self.hidden_size
        return 2 * self.ca_kv_heads * self.target_head_dim if self.ca else 0

    @property
    def token_bytes(self) -> int:
        """What a conversation's drafter holds of a token: keys and values in float16, and rows in float32."""
        if self.kind == MOA:
            heads = self.sa_kv_heads + self.ca * self.ca_kv_heads + self.reused_layers * self.target_kv_heads
            rows = 1 if self.reused_layers else 0
        else:
            heads, rows = self.own_layers * self.sa_kv_heads, 0 if self.kind == DFLASH else 2
        return 4 * heads * self.head_dim + 4 * rows * self.hidden_size

    @property
    def reads_last_hidden(self) -> bool:
        """Memory rows are made from the target's last hidden state (after its final norm), not its keys and values."""
        return self.kind == EAGLE2 or (self.kind == MOA and self.ca and not self.lsa and not self.state_entries)

    @property
    def has_own_head(self) -> bool:
        """It never runs the target's head."""
        return self.kind == EAGLE3

    @property
    def memory_rope(self) -> dict[str, Any]:
        """Rotary parameters of cross-attention and layer self-attention."""
        if not self.unscaled_memory_rope:
            return self.rope_parameters
        return {"rope_type": "default", "rope_theta": self.rope_parameters["rope_theta"]}

    def to_json(self) -> str:
        """Its JSON, without what earlier versions do not know where that is the default."""
        values = dataclasses.asdict(self)
        later = {entry.name: entry.default for entry in dataclasses.fields(self) if entry.name in _LATER}
        stored = {name: value for name, value in values.items() if name not in later or value != later[name]}
        return json.dumps(stored, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DrafterConfig:
        """Reads a configuration; raises CheckpointError if `text` is none."""
        try:
            given = parse_json(text)
            if isinstance(given.get("state_entries"), list):
                given["state_entries"] = tuple(given["state_entries"])
            return cls(**given)
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"The checkpoint's drafter configuration cannot be read ({error}).") from None


_OWN = ("target_hidden_size", "own_heads", "own_head_dim")
_BLOCK = ("block_size", "mask_token", "markov_rank")
_MAY_BE_ZERO = ("reused_layers", "draft_vocab", "target_kv_width", *_OWN, *_BLOCK)
_LATER = (
    *("target_kv_width", "state_entries", *_OWN, "own_embeddings"),
    *("head_norms", "feature_norm", "normed_residual", "normed_feedback"),
    *(*_BLOCK, "anchor_guesses", "ca"),
)
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
        elif entry.type == "tuple[int, ...]":
            right = isinstance(value, tuple) and all(type(each) is int for each in value)
            wanted = "a list of whole numbers"
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

"""Shapes and options of one drafter, and what each kind of drafter says of itself.

Pure data: JSON in the checkpoint's metadata, checked where it is read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from moa_shared.drafter.kinds.weights import Rows, TargetParts
from moa_shared.drafting.drafts import ConversationDrafter
from moa_shared.errors import CheckpointError
from moa_shared.models.network.network import Weights
from moa_shared.models.storage.gguf_keys import MOST_LAYERS
from moa_shared.plain_text import parse_json, plain_line

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
    Device = torch.device | None
    TorchRows = Callable[[torch.Tensor], torch.Tensor]

JOINT, EACH = "joint", "each"
Shapes = dict[str, tuple[int, ...]]
NewState = Callable[[], ConversationDrafter]
MakeRows = Callable[[Rows], Rows]  # from [tokens, ...] of the target to [tokens, memory width]


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter for one target: Mixture of Attentions (arXiv 2410.03804), or another of `KINDS`.

    A whole number may be 0 where that is its default. Earlier versions do not know `target_kv_width` and what follows.
    """

    vocab_size: int  # this and the five that follow: of the target
    hidden_size: int
    target_layers: int
    target_heads: int
    target_kv_heads: int
    target_head_dim: int
    # Key/value heads and MLP width of self- and cross-attention, whose query heads and head dimension are the target's.
    # The layers of all kinds but moa have the sizes of `sa_*`, and `ca_*` and `lsa_*` mean nothing to them.
    sa_kv_heads: int
    sa_mlp: int
    ca_kv_heads: int
    ca_mlp: int
    lsa_heads: int  # of layer self-attention, whose width is the target's KV width: head dimension width // lsa_heads
    lsa_kv_heads: int
    lsa_mlp: int
    # The target's, as of transformers, for all three attentions: so rope scaling is the same everywhere.
    rms_norm_eps: float = 1e-5
    rope_parameters: dict[str, Any] = field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    # The authors' mistake, for their own checkpoints: the memory's attentions lose the target's scaling (Llama 3.1).
    unscaled_memory_rope: bool = False
    reused_layers: int = 0  # N, the target's last layers that the drafter runs too
    draft_vocab: int = 0  # how many tokens the drafter can propose; 0: all of the target's
    output_norm: bool = False  # it owns a norm before the head (N = 0 only; the authors apply the head bare)
    max_block: int = 15  # the longest run of tokens beyond its memory that it was trained for
    target_fingerprint: str = ""  # hexadecimal sha256 of the target; empty where unknown
    kind: str = "moa"  # of `KINDS`
    own_layers: int = 1  # of kinds that have more than one of their own
    # False: the memory is made from `state_entries`; without these, an ablation, it is the target's last hidden state.
    lsa: bool = True
    input_norm: bool = True  # False, as EAGLE-2's authors publish it: none before the attention
    fc_bias: bool = False  # of EAGLE-2's projection
    qkv_bias: bool = False  # of queries, keys and values; of drafters of blocks what leaves the attention has one too
    target_kv_width: int = 0  # numbers of a token's key and value in the target's widest layer; 0: in all the same
    # Hidden states that a memory row is made from: 0 the target's embeddings, e what layer e - 1 gives.
    state_entries: tuple[int, ...] = ()
    target_hidden_size: int = 0  # the width of those states, if it is not `hidden_size`, which is the drafter's
    own_heads: int = 0  # 0: the target's
    own_head_dim: int = 0
    own_embeddings: bool = False  # the checkpoint holds embeddings; otherwise they are the target's
    head_norms: bool = False  # queries and keys of each head are normed, as in Qwen3
    feature_norm: str = ""  # of states before the projection: "joint", as one row; "each", one by one (EAGLE-3.1)
    normed_residual: bool = False  # the first layer adds to its normed input (speculators' norm_before_residual)
    normed_feedback: bool = False  # its own states are fed back after its final norm (norm_output of EAGLE-3.1)
    block_size: int = 0  # the rows of a block, which is the newest token and then `mask_token` again and again
    mask_token: int = 0
    anchor_guesses: bool = False  # a row guesses the token after its position, not the one at it (sample_from_anchor)
    markov_rank: int = 0  # width of the factors of what a token adds to the logits of the next one; 0: nothing is added
    ca: bool = True  # False, an ablation of moa: no cross-attention but its MLP, and so no memory
    hidden_first: bool = False  # the projection of an MTP head reads the state before the embedding
    output_gate: bool = False  # attention's output is gated; the projection of queries has gates behind them
    experts: tuple[int, ...] = ()  # how many, the width of each, and of one that all rows have; (): there is an MLP
    # Of an assistant: config.json of its layers; which layers of the target's cache they attend, and their widths,
    # first the one that sees all positions, then the one with a window; clusters of its head's tokens, and how many of
    # these it looks at.
    layer_config: str = ""
    memory_layers: tuple[int, ...] = ()
    memory_widths: tuple[int, ...] = ()
    clusters: int = 0
    chosen_clusters: int = 0

    def __post_init__(self) -> None:
        _check_types(self)
        if self.kind not in KINDS:
            _refuse(f"kind must be one of {', '.join(KINDS)}")
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
            "output_norm precedes the head only where no layers are reused": not self.output_norm
            or not self.reused_layers,
            "state_entries must be 0 to target_layers": {*self.state_entries} <= {*range(self.target_layers + 1)},
            "feature_norm must be joint, each or empty": self.feature_norm in ("", JOINT, EACH),
            "mask_token must be a token of the vocabulary": self.mask_token < self.vocab_size,
        }
        for entry in dataclasses.fields(self):
            takers = [name for name, kind in KINDS.items() if entry.name in kind.takes]
            if takers and self.kind not in takers:
                rule = f"only {' and '.join(takers)} may have {entry.name}"
                checks[rule] = getattr(self, entry.name) == entry.default
        for rule, holds in {**checks, **self.traits.rules(self)}.items():
            if not holds:
                _refuse(rule)

    @property
    def traits(self) -> Kind:
        return KINDS[self.kind]

    @property
    def kv_width(self) -> int:
        """Numbers of one token's key and value in one target layer: the widest, where they differ."""
        return self.target_kv_width or 2 * self.target_kv_heads * self.target_head_dim

    @property
    def heads(self) -> int:
        return self.own_heads or self.target_heads

    @property
    def head_dim(self) -> int:
        return self.own_head_dim or self.target_head_dim

    @property
    def state_width(self) -> int:
        return self.target_hidden_size or self.hidden_size

    @property
    def block_levels(self) -> int:
        """The tokens that one block guesses; 0: the drafter guesses one after the other."""
        return self.block_size if self.anchor_guesses else max(0, self.block_size - 1)

    @property
    def memory_width(self) -> int:
        """Numbers of a memory row on the wire; 0: it reads none."""
        return self.traits.memory_width(self)

    @property
    def reads_last_hidden(self) -> bool:
        """Memory rows are made from the target's last hidden state (after its final norm), not its keys and values."""
        return self.traits.reads_last_hidden(self)

    @property
    def token_bytes(self) -> int:
        """What a conversation's drafter holds of a token: keys and values in float16, and rows in float32."""
        heads, rows = self.traits.held(self)
        return 4 * heads * self.head_dim + 4 * rows * self.hidden_size

    @property
    def memory_rope(self) -> dict[str, Any]:
        if not self.unscaled_memory_rope:
            return self.rope_parameters
        return {"rope_type": "default", "rope_theta": self.rope_parameters["rope_theta"]}

    def shapes(self) -> Shapes:
        shapes = self.traits.shapes(self)
        if self.output_norm:
            shapes["output_norm.weight"] = (self.hidden_size,)
        if self.draft_vocab:
            shapes["draft_ids"] = (self.draft_vocab,)
        return shapes

    def to_json(self) -> str:
        """Its JSON, without what earlier versions do not know where that is the default."""
        fields = dataclasses.fields(self)
        first = [entry.name for entry in fields].index("target_kv_width")
        left_out = [entry.name for entry in fields[first:] if getattr(self, entry.name) == entry.default]
        stored = {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}
        return json.dumps(stored, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> DrafterConfig:
        """Reads a configuration; raises CheckpointError if `text` is none."""
        try:
            given = parse_json(text)
            read = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            return cls(**cast(dict[str, Any], read))
        except (AttributeError, TypeError, ValueError) as error:
            raise CheckpointError(f"The checkpoint's drafter configuration cannot be read ({error}).") from None


@dataclass(frozen=True, slots=True)
class DeviceHalf:
    config: DrafterConfig
    own: Weights  # the checkpoint's tensors
    target: Weights  # its embeddings and head, and the reused layers with the final norm
    weights: str  # as of `Arithmetic.of`
    parts: TargetParts | None = None  # of the target, where other drafters run them too


class Kind:
    """What one kind of drafter is; a module of this package says it all. Methods have defaults for what is rare."""

    name: ClassVar[str]  # in a configuration
    label: ClassVar[str]  # for tables
    about: ClassVar[str] = ""  # begins a card
    variants: ClassVar[Mapping[str, str]] = {}  # published forms by name, with what people call them; the best first
    not_run: ClassVar[frozenset[str]] = frozenset()  # those of them that this version makes no checkpoint of
    renamed: ClassVar[Mapping[str, str]] = {}  # beginnings of the names of published tensors, and of ours
    takes: ClassVar[frozenset[str]] = frozenset()  # options that only the kinds which name them may set
    objective: ClassVar[str] = ""  # what it is trained by (`moa_training.objective`); "": it is not trained
    has_own_head: ClassVar[bool] = False
    reads_states: ClassVar[bool] = False
    # Its memory rows are the target's own keys and values, and beside them it reads the state of the newest token.
    reads_target_cache: ClassVar[bool] = False
    maps_target: ClassVar[bool] = False  # it runs parts of the target that processes of a device share
    shares_memory: ClassVar[bool] = False  # drafters of it may read the same memory rows
    is_timed: ClassVar[bool] = False  # a device measures a level of its drafts
    has_many_layers: ClassVar[bool] = False  # training is told how many layers it has; it has one otherwise
    server_tensors: ClassVar[tuple[str, ...]] = ()  # beginnings of the names of what only the server runs
    decoder: ClassVar[type[Any]]  # of a `DeviceHalf`: what computes drafts; raises KernelError for what it cannot
    state: ClassVar[type[Any]]  # the ConversationDrafter of one conversation, over that

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        """What must hold of a configuration, in words, and whether it does."""
        return {}

    def method(self, config: DrafterConfig) -> str:
        return self.label

    def fits(self, names: Collection[str]) -> bool:
        """Whether tensors of these names are of a drafter of this kind, as others publish it."""
        return False

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        """A published checkpoint's configuration, and beginnings of the names, all ours, of what is left out.

        CheckpointError: it is of another target or form; KeyError: it lacks a tensor; others: its config.json is wrong.
        """
        raise CheckpointError(f"{of.where} is no {self.label} that moa knows.")

    def our_name(self, name: str) -> str:
        for theirs, ours in self.renamed.items():
            name = ours + name.removeprefix(theirs) if name.startswith(theirs) else name
        return name

    def layers(self, config: DrafterConfig) -> list[str]:
        """Beginnings of the names of its layers' tensors."""
        return [f"layers.{index}" for index in range(config.own_layers)]

    def shapes(self, config: DrafterConfig) -> Shapes:
        return {}

    def begins_as(self, config: DrafterConfig) -> dict[str, int]:
        """The target's layer that each of its layers begins as in training: the first and the last ones."""
        names, last = self.layers(config), config.target_layers - 1
        lower = len(names) // 2
        return {name: at if at < lower else last - (len(names) - 1 - at) for at, name in enumerate(names)}

    def usual_entries(self, layers: int) -> tuple[int, ...]:
        """The hidden states that its authors read of a target of so many layers."""
        return ()

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        """Key/value heads, and rows of its hidden size, that a conversation holds of a token."""
        return config.own_layers * config.sa_kv_heads, 2

    def memory_width(self, config: DrafterConfig) -> int:
        return config.hidden_size

    def window(self, config: DrafterConfig) -> int:
        """How many of the newest tokens have memory rows of the whole width; 0: all."""
        return 0

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return False

    def not_served(self, config: DrafterConfig) -> str:
        """What an ablation lacks that a server needs; "": it is served."""
        return ""

    def rows(self, config: DrafterConfig, own: Weights, weights: str) -> MakeRows:
        """What makes wire rows of what it reads: the server's half, by the kernels."""
        return lambda hidden: hidden[:, : config.memory_width]

    def torch_rows(self, config: DrafterConfig, tensors: Tensors, dtype: torch.dtype, device: Device) -> TorchRows:
        return lambda hidden: hidden[:, : config.memory_width]


KINDS: dict[str, Kind] = {}  # by name, filled by this package


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint as others publish it, beside the target that it is to draft for."""

    shapes: Shapes  # of its tensors, by their names
    config: Mapping[str, Any]  # its config.json
    target: Mapping[str, Any]  # the target's config.json
    target_id: str
    where: str  # its own name

    @property
    def sizes(self) -> Mapping[str, Any]:
        return self.config.get("transformer_layer_config") or self.config


def _check_types(config: DrafterConfig) -> None:
    def is_positive(value: object) -> bool:
        return isinstance(value, int | float) and 0 < value < math.inf

    for entry in dataclasses.fields(config):
        value, least = getattr(config, entry.name), int(entry.default != 0)
        most = MOST_LAYERS if entry.name in ("target_layers", "reused_layers", "own_layers") else 1 << 31
        right, wanted = {
            "int": (type(value) is int and least <= value <= most, f"a whole number from {least} to {most}"),
            "bool": (isinstance(value, bool), "true or false"),
            "str": (isinstance(value, str), "text"),
            "float": (is_positive(value), "a positive number"),
            "tuple[int, ...]": (isinstance(value, tuple) and {*map(type, value)} <= {int}, "a list of whole numbers"),
            "dict[str, Any]": (
                isinstance(value, dict) and is_positive(value.get("rope_theta")),
                "an object with a positive rope_theta",
            ),
        }[str(entry.type)]
        if not right:
            _refuse(f"{entry.name} is {plain_line(repr(value), 80)}, expected {wanted}")


def _refuse(rule: str) -> NoReturn:
    raise CheckpointError(
        f"The drafter's configuration is wrong: {rule}.", hint="Correct that value, or give another drafter."
    )

"""Shapes and options of one drafter, and what each kind of drafter says of itself.

Pure data: JSON in the checkpoint's metadata, checked where it is read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from moa_shared.drafter.layers.arithmetic import Rows
from moa_shared.drafter.layers.target_parts import TargetParts
from moa_shared.drafting.base import ConversationDrafter
from moa_shared.errors import CheckpointError
from moa_shared.models.gguf.keys import MOST_LAYERS
from moa_shared.models.network.layers import Weights
from moa_shared.text.json_text import parse_json
from moa_shared.text.plain_text import plain_line

if TYPE_CHECKING:
    import torch

    Tensors = Mapping[str, torch.Tensor]
    Device = torch.device | None
    TorchRows = Callable[[torch.Tensor], torch.Tensor]

JOINT, EACH = "joint", "each"  # the norms that there may be before EAGLE-3's projection: of all states, or one for each
MOST_SHOWN = 80  # characters of a wrong value in a message
_MOST = 1 << 31  # of any number: no file holds a tensor of such a size

Shapes = dict[str, tuple[int, ...]]
NewState = Callable[[], ConversationDrafter]
MakeRows = Callable[[Rows], Rows]  # from [tokens, ...] of the target to [tokens, memory width]


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A drafter for one target: Mixture of Attentions (arXiv 2410.03804), or another of `KINDS`.

    Args:
        vocab_size, hidden_size, target_layers, target_heads, target_kv_heads, target_head_dim: of the target.
        sa_*, ca_*: key/value heads and MLP width of self- and cross-attention; their query heads and head dimension are
            the target's. The layers of all kinds but moa have the sizes of `sa_*`, and `ca_*` and `lsa_*` mean nothing
            to them.
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
        kind: of `KINDS`.
        own_layers: of kinds that have more than one of their own.
        lsa: False: the memory is made from `state_entries`; without these, an ablation, it is the target's last hidden
            state.
        input_norm, fc_bias: as EAGLE-2's authors publish it: no norm before the attention, and a bias where the
            checkpoint has one.
        qkv_bias: queries, keys and values have biases; of drafters of blocks what leaves the attention has one too.
        target_kv_width: numbers of one token's key and value in the target's widest layer; 0: all layers have
            `target_kv_heads` of `target_head_dim`.
        state_entries: which of the target's hidden states a memory row is made from, in that order: 0 its embeddings, e
            the output of layer e - 1, before the final norm.
        target_hidden_size: the width of those states, if it is not `hidden_size`, which is the drafter's; 0: it is.
        own_heads, own_head_dim: 0: the target's.
        own_embeddings: the checkpoint holds embeddings; otherwise they are the target's.
        head_norms: queries and keys of each head are normed, as in Qwen3.
        feature_norm: "joint", all states of a token are normed as one row before the projection; "each", each has a
            norm of its own (EAGLE-3.1); "", neither.
        normed_residual: the first layer adds to its normed input (speculators' norm_before_residual).
        normed_feedback: its own states are fed back after its final norm (norm_output of EAGLE-3.1).
        block_size: the rows of a block, which is the newest token and then `mask_token` again and again.
        anchor_guesses: a row guesses the token after its own position, so that the newest token's row guesses too
            (sample_from_anchor); otherwise it guesses the token at its position.
        markov_rank: width of the factors of what a token adds to the logits of the next one; 0: nothing is added.
        ca: False, an ablation of moa without lsa and state_entries: no cross-attention but its MLP, and so
            no memory.
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
    kind: str = "moa"
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
            "output_norm precedes the head only where no layers are reused": not (
                self.output_norm and self.reused_layers
            ),
            "state_entries must be 0 to target_layers": all(
                0 <= each <= self.target_layers for each in self.state_entries
            ),
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
    def method(self) -> str:
        return self.traits.method(self)

    @property
    def heads(self) -> int:
        return self.own_heads or self.target_heads

    @property
    def head_dim(self) -> int:
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
        """Rotary parameters of cross-attention and layer self-attention."""
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


@dataclass(frozen=True, slots=True)
class DeviceHalf:
    """What a drafter computes with on a device.

    Args:
        own: the checkpoint's tensors.
        target: its embeddings and head, and the reused layers with the final norm.
        weights: as of `Arithmetic.of`.
        parts: of the target, where other drafters run them too.
        states_from: the layer that the states which come enter, where it is an earlier one than the first reused layer.
    """

    config: DrafterConfig
    own: Weights
    target: Weights
    weights: str
    parts: TargetParts | None = None
    states_from: int | None = None


class Kind:
    """What one kind of drafter is; a module of this package says it all. Methods have defaults for what is rare.

    Attributes:
        name: in a configuration; `label`: for tables; `about`: begins a card.
        variants: its published forms, by name, with what people call them; the most promising one first.
        not_run: those of them that this version makes no checkpoint of.
        layouts: in which others publish it.
        takes: options of a configuration that only the kinds which name them may set.
        objective: the name of what it is trained by (`moa_training.objective`); "": it is not trained.
        maps_target: it runs parts of the target that processes of a device share.
        shares_memory: drafters of it may read the same memory rows.
        has_many_layers: training is told how many layers it has; it has one otherwise.
        is_timed: a device measures a level of its drafts.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    about: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, str]] = {}
    not_run: ClassVar[frozenset[str]] = frozenset()
    layouts: ClassVar[tuple[Layout, ...]] = ()
    takes: ClassVar[frozenset[str]] = frozenset()
    objective: ClassVar[str] = ""
    has_own_head: ClassVar[bool] = False
    reads_states: ClassVar[bool] = False
    maps_target: ClassVar[bool] = False
    shares_memory: ClassVar[bool] = False
    is_timed: ClassVar[bool] = False
    has_many_layers: ClassVar[bool] = False

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        """What must hold of a configuration, in words, and whether it does."""
        return {}

    def method(self, config: DrafterConfig) -> str:
        return self.label

    def form(self, config: DrafterConfig) -> Mapping[str, str]:
        return {"layers": str(config.own_layers)}

    # ------------------------------------------------------------ what it holds

    def layers(self, config: DrafterConfig) -> list[str]:
        """Beginnings of the names of its layers' tensors."""
        return [f"layers.{index}" for index in range(config.own_layers)]

    def shapes(self, config: DrafterConfig) -> Shapes:
        return {}

    def server_tensors(self, config: DrafterConfig) -> tuple[str, ...]:
        """Beginnings of the names of what only the server runs."""
        return ()

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

    # ------------------------------------------------------------ what it reads of the target

    def memory_width(self, config: DrafterConfig) -> int:
        return config.hidden_size

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

    # ------------------------------------------------------------ its state while it drafts

    def states(self, half: DeviceHalf) -> NewState:
        """What makes a conversation's drafter; raises KernelError too for what cannot be computed with."""
        raise CheckpointError(f"A {self.label} has no checkpoint.", hint="Give another --drafter.")


KINDS: dict[str, Kind] = {}  # by name, filled by this package


@dataclass(frozen=True, slots=True)
class Published:
    """A checkpoint as others publish it, beside the target that it is to draft for.

    Args:
        shapes: of its tensors, by their names; `config`: its config.json; `where`: its own name.
        target: the target's config.json; `target_id`: its name.
    """

    shapes: Shapes
    config: Mapping[str, Any]
    target: Mapping[str, Any]
    target_id: str
    where: str

    @property
    def sizes(self) -> Mapping[str, Any]:
        """What says the sizes of its layers."""
        return self.config.get("transformer_layer_config") or self.config


# What a published checkpoint becomes: a configuration, and our names of the tensors that are kept, by theirs. What
# becomes `draft_ids` is a table of offsets: from each draft token to the target's token.
Conversion = tuple[DrafterConfig, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Layout:
    """A form in which others publish a kind of drafter.

    Args:
        label: of the form, in messages.
        fits: whether tensors of these names are in it.
        convert: raises CheckpointError for another target, or a form that is not computed; KeyError for a tensor that
            is missing, by our name; AttributeError, TypeError, ValueError for a configuration that cannot be read.
        published: from our name of a tensor, and the shapes, to theirs, for messages.
    """

    label: str
    fits: Callable[[Collection[str]], bool]
    convert: Callable[[Published], Conversion]
    published: Callable[[str, Shapes], str] = lambda name, shapes: name


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
            _refuse(f"{entry.name} is {plain_line(repr(value), MOST_SHOWN)}, expected {wanted}")


def _refuse(rule: str) -> NoReturn:
    raise CheckpointError(f"The drafter's configuration is wrong: {rule}.", hint="Correct that value.")

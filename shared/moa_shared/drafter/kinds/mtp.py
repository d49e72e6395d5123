"""Multi-token-prediction heads (MTP, "nextn"), which come with a model: decoder blocks of its own form.

A head reads each token's embedding beside a state of the token before, both normed: the first head the target's last
state, after its final norm, each other one what the head before it leaves, after a norm of its own. What follows a node
at depth k of a draft is head k's guess, of deeper nodes the last one's, over states that begin with the first head's
own. A token has a row in each head, but head k has none of the first k rows, for want of a state. Invariants: those of
`BaselineState`, which keeps the rows of all heads as one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import numpy as np
from moa_kernels import Segment
from moa_kernels.transformer.layer import MOST_EXPERTS

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.config import DeviceHalf, DrafterConfig, Kind, Published, Shapes
from moa_shared.drafter.kinds.eagle import BaselineState, RowDecoder
from moa_shared.drafter.kinds.layout import OwnLayers
from moa_shared.drafter.kinds.state import Placement, run_of_text
from moa_shared.drafter.kinds.weights import Rows, TargetParts, check_tables
from moa_shared.errors import CheckpointError
from moa_shared.models.network.network import offset_norm
from moa_shared.models.network.plan import plan_of
from moa_shared.models.storage.tensors import EMBEDDINGS

_PROJECTION, _NORMS = "eh_proj", ("enorm", "hnorm", "norm")  # of embedding and state; of what leaves the block
COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # of the target's: ends of names
_MOST_HEADS = 16  # published: up to three
_RENAMED = {
    **dict.fromkeys(("fc", "input_proj"), _PROJECTION),
    **dict.fromkeys(("pre_fc_norm_embedding", "token_layernorm", "embed_norm"), "enorm"),
    **dict.fromkeys(("pre_fc_norm_hidden", "hidden_layernorm", "hidden_norm"), "hnorm"),
    **dict.fromkeys(("shared_head.norm", "final_layernorm", "post_norm"), "norm"),
}  # of Qwen, MiMo, Inkling and GLM


class HeadDecoder(RowDecoder):
    def __init__(self, half: DeviceHalf) -> None:
        config, own, self._target = half.config, half.own, half.target
        check_tables(self._target, config.vocab_size, config.hidden_size)
        parts = half.parts or TargetParts(self._target)
        OwnLayers.__init__(self, half, plan=parts.plan)
        whole, names = self.stack, config.traits.layers(config)
        self._stacks = [self.arithmetic.stack(whole.shape, [layer], whole.rotaries) for layer in whole.layers]
        self.stack = self._stacks[0]  # whose caches fit each
        self._projections = [self.arithmetic.linear([own.array(f"{name}.{_PROJECTION}.weight")]) for name in names]
        self._norms = [[own.array(f"{name}.{norm}.weight") for norm in _NORMS] for name in names]
        if parts.plan is not None:
            self._norms = [[offset_norm(norm, parts.plan.family) for norm in each] for each in self._norms]
        self._head = parts.head(None, self.arithmetic)
        self.reads_features, self.heads, self.width = True, len(names), len(names) * config.hidden_size

    def run_head(self, number: int, tokens: Sequence[int], states: Rows, segment: Segment) -> Rows:
        """What a head leaves of new rows, normed; `states`: of the tokens before; both [rows, hidden size]."""
        embedding_norm, state_norm, norm = self._norms[number]
        read = [self.normed(self._target.rows(EMBEDDINGS, tokens), embedding_norm), self.normed(states, state_norm)]
        rows = self._projections[number](np.concatenate(read[:: -1 if self.config.hidden_first else 1], axis=-1))
        return self.normed(self._stacks[number].run(rows, [segment])[0], norm)

    def logits(self, features: Rows) -> Rows:
        """Of the first head's rows, which come first."""
        return self._head(features[:, : self.config.hidden_size])


class HeadState(BaselineState):
    """Rows are those of all heads side by side, [heads * hidden size]."""

    decoder: HeadDecoder

    def __init__(self, decoder: HeadDecoder) -> None:
        super().__init__(decoder)
        self._caches = [self._cache, *(decoder.new_cache() for _ in range(1, decoder.heads))]

    def _run(self, tokens: Sequence[int], features: Rows | None, place: Placement) -> Rows:
        hidden, start = self.decoder.config.hidden_size, len(self._outputs)
        newest = self._newest()[None]
        states = newest if features is None else features
        above = states if self._drafting else newest  # rows of the nodes' parents, or the one before the first
        states, left = states[:, :hidden], []
        for number, cache in enumerate(self._caches):
            skipped = 0 if self._drafting else min(max(0, number - start), len(tokens))
            out = np.zeros((len(tokens), hidden), np.float32)
            if skipped < len(tokens):
                rows = range(start + skipped, start + len(tokens))
                segment = (place if self._drafting else run_of_text(rows))(cache)
                out[skipped:] = self.decoder.run_head(number, tokens[skipped:], states[skipped:], segment)
                cache.length += segment.rows
            left.append(out)
            states = np.concatenate((above[:, number * hidden :][:, :hidden], out))[: len(tokens)]
        return np.concatenate(left, axis=-1)

    def _logits(self, out: Rows, known: int) -> Rows:
        heads = [min(depth, self.decoder.heads - 1) for depth in self._nodes.depths[known:]]
        return self.decoder.logits(out.reshape(len(out), self.decoder.heads, -1)[np.arange(len(out)), heads])

    def _crop_cache(self, rows: int) -> None:
        for number, cache in enumerate(self._caches):
            cache.crop(max(0, rows - number))


class _Mtp(Kind):
    name = "mtp"
    label = "MTP head"
    about = "A multi-token-prediction head, which comes with its model"
    variants: ClassVar = {"mtp": "MTP head"}
    takes = frozenset({"hidden_first", "qkv_bias", "head_norms", "output_gate", "experts"})
    reads_states = True
    decoder, state = HeadDecoder, HeadState

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        count, inner, shared = config.experts if len(config.experts) == 3 else (0, 0, 0)
        return {
            f"there must be at most {_MOST_HEADS} heads": config.own_layers <= _MOST_HEADS,
            f"experts must be a number up to {MOST_EXPERTS}, their width, and that of a shared one": not config.experts
            or (0 < count <= MOST_EXPERTS and inner > 0 and shared >= 0),
        }

    def fits(self, names: Collection[str]) -> bool:
        return any(self.our_name(name).endswith(f".{_PROJECTION}.weight") for name in names if "mtp" in name)

    def our_name(self, name: str) -> str:
        """Of `mtp.layers.0.MODULE`, `mtp.MODULE` where there is one head, or MiMo's `model.mtp_layers.0.MODULE`."""
        within = name.partition("mtp")[2].lstrip("._").removeprefix("layers.")
        number, _, rest = within.partition(".")
        if not number.isdecimal():
            number, rest = "0", within
        module, _, kind = rest.rpartition(".")
        return f"layers.{number}.{_RENAMED.get(module, module)}.{kind}"

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        """All sizes are the target's: the blocks are of its family."""
        plan, heads = plan_of(of.target), sum(name.endswith(f".{_PROJECTION}.weight") for name in shapes)
        layout.check_form(of, self.label, shapes, shapes[f"layers.0.{_PROJECTION}.weight"][0])
        family, mixture = plan.family, plan.attention_layer.mixture
        is_mimo = any(".input_proj." in name for name in of.shapes)
        config = DrafterConfig(
            **layout.sizes_without_memory(of.target),
            kind=self.name,
            sa_kv_heads=plan.shape.kv_heads,
            sa_mlp=plan.shape.inner,
            own_layers=heads,
            head_norms="self_attn.q_norm.weight" in family.needed,
            qkv_bias="self_attn.q_proj.bias" in family.needed,
            output_gate=family.output_gate,
            experts=() if mixture is None else (mixture.count, mixture.inner, mixture.shared),
            rms_norm_eps=plan.shape.eps,
            rope_parameters=layout.rope_of(of.target),
            hidden_first=bool(of.config.get("mtp_hidden_states_first", is_mimo)),
        )
        copies = tuple(name for name in shapes if name.endswith(COPIES))
        block, expected = {name: shapes[name] for name in shapes if name not in copies}, config.shapes()
        for name in sorted(block.keys() | expected.keys()):
            if (got := block.get(name)) != (wanted := expected.get(name)):
                what = f"{name} has {_said(got)}, {of.target_id} needs {_said(wanted)}"
                raise CheckpointError(f"{of.where} has blocks of another family: {what}.", hint=layout.ANOTHER)
        return config, copies

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden, shapes = config.hidden_size, layout.own_layer_shapes(config)
        for name in self.layers(config):
            shapes[f"{name}.{_PROJECTION}.weight"] = (hidden, 2 * hidden)
            shapes |= {f"{name}.{norm}.weight": (hidden,) for norm in _NORMS}
            if config.output_gate:
                rows, _ = shapes.pop(f"{name}.self_attn.q_proj.weight")
                shapes[f"{name}.self_attn.gated_q_proj.weight"] = (2 * rows, hidden)
            if config.experts:
                shapes = {each: shape for each, shape in shapes.items() if not each.startswith(f"{name}.mlp.")}
                shapes |= _mixture_shapes(f"{name}.mlp", hidden, *config.experts)
        return shapes

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        return config.own_layers * config.sa_kv_heads, 1 + config.own_layers

    def reads_last_hidden(self, config: DrafterConfig) -> bool:
        return True


def _mixture_shapes(name: str, hidden: int, count: int, inner: int, shared: int) -> Shapes:
    widths, shapes = {f"experts.{number}": inner for number in range(count)}, Shapes()
    shapes[f"{name}.gate.weight"] = (count, hidden)
    if shared:
        widths["shared_expert"], shapes[f"{name}.shared_expert_gate.weight"] = shared, (1, hidden)
    for mlp, width in widths.items():
        shapes |= {f"{name}.{mlp}.{part}_proj.weight": (width, hidden) for part in ("gate", "up")}
        shapes[f"{name}.{mlp}.down_proj.weight"] = (hidden, width)
    return shapes


def _said(shape: tuple[int, ...] | None) -> str:
    return "none" if shape is None else f"the shape {list(shape)}"


MTP = _Mtp()

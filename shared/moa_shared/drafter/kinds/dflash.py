"""DFlash and DSpark: a block of tokens guessed in one step, by layers whose rows see the context and one another.

Published by z-lab, vllm-project (speculators) and deepseek-ai (DeepSpec). Head and embeddings are the target's. The
server projects the target's states to a context row a token, of which each layer on the device makes keys and values.
What follows a node depends on its depth alone (DFlash), or on its depth and its token (DSpark). A text that goes on
below a block begins another one at its last token. Invariants: the cache holds context rows and nothing else; each key
carries its own position, so rows may come in any order. A block sees rows of positions before its first token alone.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Segment

from moa_shared.drafter.kinds import layout
from moa_shared.drafter.kinds.config import DeviceHalf, DrafterConfig, Published, Shapes
from moa_shared.drafter.kinds.layout import KindOfStates, OwnLayers
from moa_shared.drafter.kinds.state import BaseState, MemoryCache
from moa_shared.drafter.kinds.weights import DRAFT_IDS, Arithmetic, Rows, TargetParts, check_tables
from moa_shared.errors import CheckpointError
from moa_shared.models.network.plan import plan_of
from moa_shared.models.storage.tensors import EMBEDDINGS
from moa_shared.tree import ROOT

MOST_BLOCK_ROWS = 64  # published: up to 16
MARKOV_IN, MARKOV_OUT = "markov_w1.weight", "markov_w2.weight"  # DSpark's
_LEFT_OUT = (layout.OWN_EMBEDDINGS, layout.OWN_HEAD, "t2d", "confidence_head.")


class BlockDecoder(OwnLayers):
    def __init__(self, half: DeviceHalf) -> None:
        super().__init__(half)
        config, own, self._target = half.config, half.own, half.target
        check_tables(self._target, config.vocab_size, config.hidden_size)
        # Of all layers in one product: a context row is the same for each.
        names = [f"{name}.self_attn.{part}_proj" for name in config.traits.layers(config) for part in "kv"]
        bias = np.concatenate([own.array(f"{name}.bias") for name in names]) if config.qkv_bias else None
        self._context = self.arithmetic.linear([own.array(f"{name}.weight") for name in names], bias)
        self._norm = own.array("norm.weight")
        self._before: Rows | None = None  # [vocabulary, rank], what a token says of the next one
        if config.markov_rank:
            self._before = own.array(MARKOV_IN)
            self._after = Arithmetic.of(half.weights, (config.markov_rank,)).linear([own.array(MARKOV_OUT)])
        self.logits = (half.parts or TargetParts(self._target)).head(self.draft_ids, self.arithmetic)

    def remember(self, cache: Cache, rows: Rows, positions: npt.NDArray[np.int32]) -> None:
        """Appends context rows, [rows, hidden size], to those that blocks see; keys are rotated here."""
        config = self.config
        split = self._context(rows).reshape(len(rows), config.own_layers, 2, config.sa_kv_heads, config.head_dim)
        for number, layer in enumerate(self.stack.layers):
            keys = np.ascontiguousarray(split[:, number, 0])
            if layer.key_norm is not None:
                normed = self.normed(keys.reshape(-1, config.head_dim), layer.key_norm)
                keys = normed.reshape(keys.shape)
            cache.write(number, self.stack.rotary.rotate(keys, positions), split[:, number, 1])
        cache.length += len(rows)

    def inputs(self, token: int) -> Rows:
        return self._target.rows(EMBEDDINGS, [token] + [self.config.mask_token] * (self.config.block_size - 1))

    def segment(self, cache: Cache, position: int, unseen: Sequence[int] = ()) -> Segment:
        """The rows of a block: each sees the whole block, and all of the context but the cache's rows `unseen`."""
        size, held = self.config.block_size, cache.length
        seen = unseen[0] if unseen else held + size
        behind = np.setdiff1d(np.arange(seen, held + size, dtype=np.int32), np.array(unseen, np.int32))
        positions, seen_by_all = np.arange(position, position + size, dtype=np.int32), np.full(size, seen, np.int32)
        starts = np.arange(size + 1, dtype=np.int32) * np.int32(len(behind))
        return Segment(cache, held, positions, seen_by_all, starts, np.tile(behind, size))

    def block(self, cache: Cache, token: int, position: int, unseen: Sequence[int] = ()) -> Rows:
        """The rows of a block that guess, after the final norm, [block levels, hidden size].

        `position`: of the token that it begins with; `unseen`: rows of the cache that it must not see, ascending.
        """
        config = self.config
        out, _ = self.stack.run(self.inputs(token), [self.segment(cache, position, unseen)])
        return self.normed(out[config.block_size - config.block_levels :], self._norm)

    def corrected(self, logits: Rows, tokens: Sequence[int]) -> Rows:
        """Logits, [rows, draft vocab], with what the tokens before them add (DSpark)."""
        return logits if self._before is None else logits + self._after(self._before[np.asarray(tokens)])


class BlockState(BaseState):
    def __init__(self, decoder: BlockDecoder) -> None:
        super().__init__(decoder.draft_ids)
        self.decoder = decoder
        self._context = MemoryCache(decoder.new_cache(), decoder.config.memory_width, decoder.remember)
        self.most_depth = decoder.config.block_levels
        self._anchors: list[int] = []  # of each node: the one whose token its block begins with
        self._blocks: dict[int, Rows] = {}  # by that node: logits, [block levels, draft vocab]

    def crop(self, length: int) -> None:
        super().crop(length)
        self._context.crop(length)

    def append_memory(self, start: int, rows: Rows) -> None:
        self._context.append(start, rows)

    def begin(self) -> Rows:
        self._begin()
        self._drafting = True
        return self.decoder.corrected(self._block(ROOT)[:1], self.tokens[-1:])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Rows:
        known = self._add(tokens, parents)
        rows = []
        for node, parent in enumerate(parents, known):
            level = self._nodes.depths[node] % self.decoder.config.block_levels
            within = ROOT if parent == ROOT else self._anchors[parent]
            self._anchors.append(within if level else node)
            rows.append(self._block(self._anchors[node])[level])
        return self.decoder.corrected(np.stack(rows), tokens)

    def _block(self, anchor: int) -> Rows:
        """Made again if it has been forgotten: the first and the newest are kept, which is all that a text needs."""
        if anchor not in self._blocks:
            self._blocks = {ROOT: self._blocks[ROOT]} if self._blocks else {}
            root, decoder = len(self.tokens) - 1, self.decoder
            token = self.tokens[-1] if anchor == ROOT else self._nodes.tokens[anchor]
            position = root if anchor == ROOT else root + self._nodes.depths[anchor]
            unseen = self._context.rows_from(position)  # the newest token's may have come
            self._blocks[anchor] = decoder.logits(decoder.block(self._context.cache, token, position, unseen))
        return self._blocks[anchor]

    def _drop_draft(self) -> None:
        # What is left of a block below committed tokens has been given out already, and knows less than a block that
        # begins at the newest token: its rows have not seen these tokens (docs/adr/0057-block-drafts.md).
        super()._drop_draft()
        self._anchors.clear()
        self._blocks.clear()


def _state_entries(of: Published, own: Mapping[str, Any], shapes: Shapes, drafters: int) -> tuple[int, ...]:
    """speculators' `aux_hidden_state_layer_ids` are these numbers.

    `target_layer_ids`, in `dflash_config` (z-lab) or at the top (DeepSpec), are layers whose output is read, one less.
    Without any these layers are as many as the drafter's, spread evenly over 1 to n - 3.
    """
    layers = int(of.target["num_hidden_layers"])
    usual = [layers // 2 + 1]
    if drafters > 1:
        usual = [round(1 + number * (layers - 4) / (drafters - 1)) + 1 for number in range(drafters)]
    inputs = of.config.get("aux_hidden_state_layer_ids")
    outputs = own.get("target_layer_ids") or of.config.get("target_layer_ids")
    return layout.read_entries(of, shapes, inputs, outputs, usual)


def _anchor_guesses(published: Mapping[str, Any], own: Mapping[str, Any], *, is_spark: bool) -> bool:
    """Files of DeepSpec, which name their layers at the top, and DSpark do; z-lab's DFlash does not."""
    said = [given.get(key) for given in (published, own) for key in ("sample_from_anchor", "shift_label")]
    if any(each is not None for each in said):
        return any(said)
    named = (*(published.get("architectures") or ()), str(published.get("speculators_model_type")))
    return is_spark or "target_layer_ids" in published or any("dspark" in name.lower() for name in named)


def _number(of: Published, own: Mapping[str, Any], key: str, allowed: range) -> int:
    given = own.get(key) if of.config.get(key) is None else of.config[key]
    if type(given) is not int or given not in allowed:
        wanted = f"a whole number from {allowed.start} to {allowed[-1]}"
        raise CheckpointError(f"The {key} of {of.where} is {given!r}, expected {wanted}.", hint=layout.ANOTHER)
    return given


class _DFlash(KindOfStates):
    name = "dflash"
    label = "DFlash"
    about = "A DFlash drafter, which guesses a block of tokens at once (arXiv 2602.06036)"
    variants: ClassVar = {"dflash": "DFlash", "dspark": "DSpark"}
    renamed: ClassVar = {"model.": "", "markov_head.markov": "markov", "d2t": DRAFT_IDS}
    takes = KindOfStates.takes | {"block_size", "mask_token", "anchor_guesses", "markov_rank"}
    objective = "blocks"
    is_timed = True
    has_many_layers = True

    def fits(self, names: Collection[str]) -> bool:
        return {"fc.weight", "hidden_norm.weight"} <= {name.removeprefix("model.") for name in names}

    def convert(self, of: Published, shapes: Shapes) -> tuple[DrafterConfig, tuple[str, ...]]:
        own = of.config.get("dflash_config") or {}
        head, layers = of.config.get("markov_head_type") or "vanilla", of.config.get("num_target_layers")
        forms = {
            "layers that see a window of the text only (use_swa)": own.get("use_swa"),
            "blocks whose rows do not see those after them (causal)": own.get("causal") or of.config.get("is_causal"),
            f"a head of the type {head} (markov_head_type)": head != "vanilla",
            "embeddings of its own (embed_requires_grad)": of.config.get("embed_requires_grad"),
        }
        layout.check_form(of, self.label, shapes, shapes["fc.weight"][0], forms, num_hidden_layers=layers)
        stack = plan_of(of.target).shape
        queries, norm = shapes["layers.0.self_attn.q_proj.weight"][0], shapes.get("layers.0.self_attn.q_norm.weight")
        head_dim = max(1, norm[0] if norm else queries // int(of.sizes.get("num_attention_heads", stack.heads)))
        markov, sizes = shapes.get(MARKOV_IN), layout.own_sizes(of, shapes, max(1, queries // head_dim), head_dim, 1e-6)
        config = DrafterConfig(
            **sizes,
            kind=self.name,
            qkv_bias="layers.0.self_attn.k_proj.bias" in shapes,
            draft_vocab=shapes[DRAFT_IDS][0] if DRAFT_IDS in shapes else 0,
            state_entries=_state_entries(of, own, shapes, sizes["own_layers"]),
            block_size=_number(of, own, "block_size", range(1, MOST_BLOCK_ROWS + 1)),
            mask_token=_number(of, own, "mask_token_id", range(int(of.target["vocab_size"]))),
            anchor_guesses=_anchor_guesses(of.config, own, is_spark=markov is not None),
            markov_rank=markov[1] if markov else 0,
        )
        return config, _LEFT_OUT

    def rules(self, config: DrafterConfig) -> Mapping[str, bool]:
        return {
            **super().rules(config),
            f"a block must have at most {MOST_BLOCK_ROWS} rows": config.block_size <= MOST_BLOCK_ROWS,
            "one row of a block or more must guess": config.block_levels > 0,
            "dflash must be as wide as the target": config.state_width == config.hidden_size,
        }

    def method(self, config: DrafterConfig) -> str:
        return self.variants["dspark" if config.markov_rank else "dflash"]

    def begins_as(self, config: DrafterConfig) -> dict[str, int]:
        first = config.target_layers - config.own_layers
        return {name: first + at for at, name in enumerate(self.layers(config))}

    def usual_entries(self, layers: int) -> tuple[int, ...]:
        return tuple(1 + round(1 + each * (layers - 4) / 4) for each in range(5))

    def held(self, config: DrafterConfig) -> tuple[int, int]:
        return config.own_layers * config.sa_kv_heads, 0

    def shapes(self, config: DrafterConfig) -> Shapes:
        hidden = config.hidden_size
        shapes = layout.own_layer_shapes(config, "qkvo") | {"fc.weight": (hidden, len(config.state_entries) * hidden)}
        shapes |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
        if config.markov_rank:
            shapes[MARKOV_IN] = (config.vocab_size, config.markov_rank)
            shapes[MARKOV_OUT] = (config.draft_vocab or config.vocab_size, config.markov_rank)
        return shapes

    decoder, state = BlockDecoder, BlockState


DFLASH = _DFlash()

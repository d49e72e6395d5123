"""DFlash's and DSpark's half on the device: layers over the rows of a block, which see the context and one another.

Sources: z-lab's dflash, vllm-project's speculators, deepseek-ai's DeepSpec. The server projects the target's states to
one context row a token (`checkpoint/shapes.py` says which tensors do so). Here each layer makes keys and values of it,
without its input norm; context rows never pass through the layers. State: weights only; what one conversation has seen
is in `BlockState` (`state.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from moa_kernels import Cache, Rotary, Segment, StackShape

from moa_shared.drafter.checkpoint.config import DrafterConfig
from moa_shared.drafter.checkpoint.shapes import MARKOV_IN, MARKOV_OUT, layer_names
from moa_shared.drafter.checkpoint.weights import check_tables, draft_ids
from moa_shared.drafter.layers.arithmetic import Arithmetic, Rows
from moa_shared.drafter.layers.target_parts import TargetParts
from moa_shared.models.network.layers import Weights, read_layer
from moa_shared.models.weights.weights import EMBEDDINGS

Numbers = npt.NDArray[np.int32]


class BlockDecoder:
    """Computes blocks.

    Args:
        config: of kind dflash.
        own: the checkpoint's tensors.
        target: the target's embeddings and head.
        weights: as of `Arithmetic.of`.
        parts: of the target, where other drafters run them too.

    Raises:
        ConfigError, ModelSourceError, KernelError: as `DraftDecoder`.
    """

    def __init__(
        self, config: DrafterConfig, own: Weights, target: Weights, weights: str, *, parts: TargetParts | None = None
    ) -> None:
        check_tables(target, config.vocab_size, config.hidden_size)
        self.config = config
        self.arithmetic = arithmetic = Arithmetic.of(weights, (config.hidden_size, config.head_dim, config.sa_mlp))
        shape = StackShape(
            config.hidden_size, config.sa_mlp, config.heads, config.sa_kv_heads, config.head_dim, config.rms_norm_eps
        )
        names = layer_names(config)
        layers = [read_layer(own, name, arithmetic.linear) for name in names]
        self.stack = arithmetic.stack(shape, layers, Rotary(config.head_dim, config.rope_parameters))
        # Of all layers in one product: a context row is the same for each.
        projections = [f"{name}.self_attn.{part}_proj" for name in names for part in "kv"]
        self._context = arithmetic.linear(
            [own.array(f"{each}.weight") for each in projections],
            np.concatenate([own.array(f"{each}.bias") for each in projections]) if config.qkv_bias else None,
        )
        self._norm = own.array("norm.weight")
        self._before: Rows | None = None  # [vocabulary, rank], what a token says of the next one
        if config.markov_rank:
            self._before = own.array(MARKOV_IN)
            self._after = Arithmetic.of(weights, (config.markov_rank,)).linear([own.array(MARKOV_OUT)])
        self.draft_ids = draft_ids(own)
        self._target = target
        self._head = (parts or TargetParts(target)).head(self.draft_ids, arithmetic)

    def new_cache(self) -> Cache:
        """An empty cache for the context of one conversation."""
        return self.stack.new_cache(kv=self.arithmetic.kv)

    def remember(self, cache: Cache, rows: Rows, positions: Numbers) -> None:
        """Appends context rows, [rows, hidden size], to those that blocks see; keys are rotated here."""
        config = self.config
        split = self._context(rows).reshape(len(rows), config.own_layers, 2, config.sa_kv_heads, config.head_dim)
        for number, layer in enumerate(self.stack.layers):
            keys = np.ascontiguousarray(split[:, number, 0])
            if layer.key_norm is not None:
                normed = self.arithmetic.norm(keys.reshape(-1, config.head_dim), layer.key_norm, config.rms_norm_eps)
                keys = normed.reshape(keys.shape)
            cache.write(number, self.stack.rotary.rotate(keys, positions), split[:, number, 1])
        cache.length += len(rows)

    def inputs(self, token: int) -> Rows:
        """What enters the first layer for a block that begins with this token, [block size, hidden size]."""
        return self._target.rows(EMBEDDINGS, [token] + [self.config.mask_token] * (self.config.block_size - 1))

    def segment(self, cache: Cache, position: int, unseen: Sequence[int] = ()) -> Segment:
        """The rows of a block that begins at this position: each sees the whole block, and all of the context but the
        rows `unseen` of the cache, which are ascending.
        """
        size, held = self.config.block_size, cache.length
        seen = unseen[0] if unseen else held + size
        behind = np.setdiff1d(np.arange(seen, held + size, dtype=np.int32), np.array(unseen, np.int32))
        return Segment(
            cache,
            held,
            np.arange(position, position + size, dtype=np.int32),
            np.full(size, seen, np.int32),
            np.arange(size + 1, dtype=np.int32) * np.int32(len(behind)),
            np.tile(behind, size),
        )

    def block(self, cache: Cache, token: int, position: int, unseen: Sequence[int] = ()) -> Rows:
        """The rows of a block that guess, after the final norm, [block levels, hidden size].

        Args:
            cache: the context, and nothing else afterwards either.
            position: of the token that the block begins with.
            unseen: rows of the cache that it must not see, ascending.
        """
        config = self.config
        out, _ = self.stack.run(self.inputs(token), [self.segment(cache, position, unseen)])
        return self.arithmetic.norm(out[config.block_size - config.block_levels :], self._norm, config.rms_norm_eps)

    def logits(self, features: Rows) -> Rows:
        """[rows, hidden size] (post-norm) to [rows, draft vocab], before what the token before says."""
        return self._head(features)

    def correction(self, tokens: Sequence[int]) -> Rows | None:
        """What these tokens add to the logits of the token after each, [rows, draft vocab]; None: nothing (DFlash)."""
        return None if self._before is None else self._after(self._before[np.asarray(tokens)])

"""The drafter to measure with: the shipped one, or an untrained one of its size where none is shipped.

What a step costs does not depend on training; what is accepted does, so results always say which of the two it was.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.drafter import Checkpoint
from moa_shared.drafter.checkpoint.config import INDEPENDENT
from moa_shared.drafter.checkpoint.shipped import (
    DEEP_DRAFTER,
    DEFAULT_DRAFTER,
    require_shipped_drafter,
    shipped_drafter,
)
from moa_shared.models import ModelFiles

AUTO_DRAFTER = "auto"  # the client's own choice among those that the server gives
SHIPPED = "shipped"
NAMED = "named by path"
UNTRAINED = "untrained"
UNTRAINED_VOCAB = 16_384  # covers 97 % of the default target's greedy tokens; the full head is half of a draft step


@dataclass(frozen=True, slots=True)
class MeasuredDrafter:
    """The drafter to measure with."""

    checkpoint: Checkpoint
    origin: str  # SHIPPED, NAMED or UNTRAINED
    path: Path | None = None  # of its file; None: it has none

    @property
    def description(self) -> str:
        """For tables: "shipped, N = 3, 16384 draft tokens"."""
        config = self.checkpoint.config
        what = config.method.removeprefix("MoA, ")
        if config.kind == INDEPENDENT:
            what = f"independent with {config.own_layers} layers"
        return f"{self.origin}, {what}, {config.draft_vocab or config.vocab_size} draft tokens"


def find_drafter(files: ModelFiles, name: str = DEFAULT_DRAFTER) -> MeasuredDrafter:
    """A drafter for this target.

    Args:
        name: "default" or "auto": the one that comes with the package, else an untrained one; "deep"; a path; or a
            published one, by folder or hub id.
    """
    from moa_shared.drafter import load_checkpoint
    from moa_shared.drafter.published.find import find_drafter as find_published

    if name == DEEP_DRAFTER:
        path = require_shipped_drafter(files.fingerprint, files.target_id, name, hint="Leave --drafter out.")
        return MeasuredDrafter(load_checkpoint(path), SHIPPED, path)
    if name not in (DEFAULT_DRAFTER, AUTO_DRAFTER):
        path = find_published(name, files)
        return MeasuredDrafter(load_checkpoint(path), NAMED, path)
    shipped = shipped_drafter(files.fingerprint)
    if shipped is not None:
        return MeasuredDrafter(load_checkpoint(shipped), SHIPPED, shipped)
    return untrained_drafter(files, 0)


def untrained_drafter(files: ModelFiles, reused_layers: int) -> MeasuredDrafter:
    """Random tensors: MLPs below twice the hidden size, as in the paper, which keeps the file under 20 MB."""
    from moa_shared.drafter import Checkpoint, DrafterConfig, fresh_tensors
    from moa_shared.models import load_config
    from moa_shared.models.network.layer_sizes import whole_rotary

    target: Any = load_config(files)
    heads, kv_heads = target.num_attention_heads, target.num_key_value_heads
    head_dim = getattr(target, "head_dim", None) or target.hidden_size // heads
    mlp = 64 * round(1.75 * target.hidden_size / 64)
    config = DrafterConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        target_layers=target.num_hidden_layers,
        target_heads=heads,
        target_kv_heads=kv_heads,
        target_head_dim=head_dim,
        sa_kv_heads=kv_heads,
        sa_mlp=mlp,
        ca_kv_heads=kv_heads,
        ca_mlp=mlp,
        lsa_heads=2 * kv_heads,  # of the target's head dimension: the target's own head count need not divide the width
        lsa_kv_heads=kv_heads,
        lsa_mlp=4 * kv_heads * head_dim,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=whole_rotary(target.rope_parameters),
        reused_layers=reused_layers,
        draft_vocab=min(UNTRAINED_VOCAB, target.vocab_size),
        target_fingerprint=files.fingerprint,
    )
    return MeasuredDrafter(Checkpoint(config, fresh_tensors(config, seed=0), ""), UNTRAINED)


def drafter_file(drafter: MeasuredDrafter, folder: Path) -> Path:
    """The drafter as a file that a server can load: its own, or one written into `folder`."""
    from moa_shared.drafter import save_checkpoint

    if drafter.path is not None:
        return drafter.path
    written = folder / "untrained.safetensors"
    save_checkpoint(written, drafter.checkpoint.config, drafter.checkpoint.tensors)
    return written


def both_ends(name: str, drafter: MeasuredDrafter, folder: Path) -> tuple[str, str]:
    """What server and client are given as --drafter; "auto": the server gives all, the client takes its choice."""
    if name == AUTO_DRAFTER:
        return DEFAULT_DRAFTER, AUTO_DRAFTER
    path = str(drafter_file(drafter, folder))
    return path, path

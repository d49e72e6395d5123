"""The drafter to measure with: the shipped one, or an untrained one of its size where none is shipped.

What a step costs does not depend on training; what is accepted does, so results always say which of the two it was.
"""

from dataclasses import dataclass
from pathlib import Path

from moa_shared.drafter import Checkpoint
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
class BenchDrafter:
    """The drafter to measure with."""

    checkpoint: Checkpoint
    origin: str  # SHIPPED, NAMED or UNTRAINED
    path: Path | None = None  # of its file; None: it has none

    @property
    def description(self) -> str:
        """For tables: "shipped, N = 3, 16384 draft tokens"."""
        own = self.checkpoint.config
        return f"{self.origin}, {own.method.removeprefix('MoA, ')}, {own.draft_vocab or own.vocab_size} draft tokens"


def find_drafter(files: ModelFiles, name: str = DEFAULT_DRAFTER) -> BenchDrafter:
    """A drafter for this target.

    Args:
        name: "default" or "auto": the one that comes with moa, else an untrained one; "deep"; a path; or a
            published one, by folder or hub id.
    """
    from moa_shared.drafter import load_checkpoint
    from moa_shared.drafter.published.find import find_drafter as find_published

    if name == DEEP_DRAFTER:
        path = require_shipped_drafter(files.fingerprint, files.target_id, name, hint="Leave --drafter out.")
        return BenchDrafter(load_checkpoint(path), SHIPPED, path)
    if name not in (DEFAULT_DRAFTER, AUTO_DRAFTER):
        path = find_published(name, files)
        return BenchDrafter(load_checkpoint(path), NAMED, path)
    shipped = shipped_drafter(files.fingerprint)
    if shipped is not None:
        return BenchDrafter(load_checkpoint(shipped), SHIPPED, shipped)
    return untrained_drafter(files)


def untrained_drafter(files: ModelFiles) -> BenchDrafter:
    """Random tensors, with a head of few tokens: almost never right."""
    from moa_shared.drafter import DrafterConfig, fresh_tensors
    from moa_shared.drafter.kinds.layout import target_sizes
    from moa_shared.models.network.layer_sizes import kv_width_if_differing

    sizes = target_sizes(files.config)
    heads, hidden, dim = sizes["target_kv_heads"], sizes["hidden_size"], sizes["target_head_dim"]
    own = {"sa_kv_heads": heads, "sa_mlp": hidden, "ca_kv_heads": heads, "ca_mlp": hidden}
    own |= {"lsa_heads": heads, "lsa_kv_heads": heads, "lsa_mlp": dim, "target_fingerprint": files.fingerprint}
    few, width = min(UNTRAINED_VOCAB, sizes["vocab_size"]), kv_width_if_differing(files.config)
    config = DrafterConfig(**sizes, **own, target_kv_width=width, draft_vocab=few)
    return BenchDrafter(Checkpoint(config, fresh_tensors(config, seed=0), ""), UNTRAINED)


def drafter_file(drafter: BenchDrafter, folder: Path) -> Path:
    """The drafter as a file that a server can load: its own, or one written into `folder`."""
    from moa_shared.drafter import save_checkpoint

    if drafter.path is not None:
        return drafter.path
    written = folder / "untrained.safetensors"
    save_checkpoint(written, drafter.checkpoint.config, drafter.checkpoint.tensors)
    return written


def both_ends(name: str, drafter: BenchDrafter, folder: Path) -> tuple[str, str]:
    """What server and client are given as --drafter; "auto": the server gives all, the client takes its choice."""
    if name == AUTO_DRAFTER:
        return DEFAULT_DRAFTER, AUTO_DRAFTER
    path = str(drafter_file(drafter, folder))
    return path, path

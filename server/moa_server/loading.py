"""From settings to a host: finds and loads the target and its drafter, computes what both ends compare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import structlog
import torch
from moa.v1 import moa_pb2 as pb
from moa_shared.drafter import Checkpoint, load_checkpoint
from moa_shared.drafter.config import EAGLE2
from moa_shared.errors import CheckpointError, ConfigError
from moa_shared.models import ModelFiles, load_target_model, load_tokenizer, resolve
from moa_shared.models.end_of_text import end_of_text
from moa_shared.progress import Progress
from moa_shared.shipped import DEFAULT_DRAFTER, SHIPPED_DRAFTERS, require_shipped_drafter, shipped_drafter

from moa_server.drafter_files import DrafterFile, DrafterFiles
from moa_server.host import Host, Served
from moa_server.settings import ServerSettings
from moa_server.stepper import MemorySource, Stepper
from moa_server.target import Target

log = structlog.get_logger()

DTYPES = {"bf16": torch.bfloat16, "float32": torch.float32}


def load_host(settings: ServerSettings, progress: Progress) -> Host:
    """Loads what `settings` names.

    Raises:
        ModelSourceError, NotFoundError, ChecksumError, CheckpointError, DiskFullError: what is named cannot be used.
        ConfigError: a context longer than the target's.
    """
    if settings.threads:
        torch.set_num_threads(settings.threads)
    files = resolve(settings.model, settings.cache_dir, progress)
    with progress.task(f"Loading {files.target_id}"):
        model = load_target_model(files, DTYPES[settings.dtype])
        target = Target(model, settings.context_length or None)
    if settings.context_length > target.context_length:
        raise ConfigError(
            f"The context length is {settings.context_length}, {files.target_id} holds {target.context_length} tokens.",
            hint="Lower --context-length, or leave it out.",
        )
    tokenizer = load_tokenizer(files)
    path = drafter_path(settings.drafter, files)
    drafter = check_drafter(path, files, target) if path else None

    def decode(tokens: Sequence[int]) -> str:
        return tokenizer.decode(tokens)

    served = Served(
        identity=pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
            drafter_fingerprint=bytes.fromhex(drafter.fingerprint) if drafter else b"",
        ),
        dtype=settings.dtype,
        vocab_size=target.vocab_size,
        context_tokens=target.context_length,
        end_of_text=end_of_text(files, tokenizer.eos_token_id),
        decode=decode,
        reused_layers=drafter.config.reused_layers if drafter else 0,
    )

    def before() -> None:  # OpenMP counts threads for each calling thread
        if settings.threads:
            torch.set_num_threads(settings.threads)

    source = memory_source(drafter, target) if drafter else None
    offered = [DrafterFile(path, drafter.config.reused_layers)] if path and drafter else []
    parts = DrafterFiles(files, served.identity, offered, settings.cache_dir, settings.frame_bytes)
    return Host(served, Stepper(target, source), settings, drafter_files=parts, before=before)


def drafter_path(spec: str, files: ModelFiles) -> Path | None:
    """The drafter whose memory rows are served.

    Args:
        spec: "none"; "default" or "deep": that which comes with the package for this target; or a path.

    Raises:
        NotFoundError: no deep drafter comes for this target.
    """
    if spec == "none":
        return None
    if spec not in SHIPPED_DRAFTERS:
        return Path(spec)
    if spec != DEFAULT_DRAFTER:
        hint = "Train one with moa-train fit, or leave --drafter out."
        return require_shipped_drafter(files.fingerprint, files.target_id, spec, hint=hint)
    path = shipped_drafter(files.fingerprint)
    if path is None:
        log.warning("no drafter is shipped for this target: clients get no memory", target=files.target_id)
    return path


def check_drafter(path: Path, files: ModelFiles, target: Target) -> Checkpoint:
    """A checkpoint, if it is one for this target.

    Raises:
        NotFoundError, CheckpointError: a path that is not there, or no drafter for this target.
    """
    checkpoint = load_checkpoint(path)
    config = checkpoint.config
    shapes: dict[str, tuple[object, object]] = {
        "vocabulary": (config.vocab_size, target.vocab_size),
        "hidden size": (config.hidden_size, target.hidden_size),
        "number of layers": (config.target_layers, target.layer_count),
        "KV width": (config.kv_width, 2 * target.kv_heads * target.head_dim),
    }
    if config.target_fingerprint:  # the authors' checkpoints do not say whose they are: their shapes must fit
        shapes["fingerprint"] = (config.target_fingerprint, files.fingerprint)
    for what, (theirs, ours) in shapes.items():
        if theirs != ours:
            raise CheckpointError(
                f"The drafter {path} is for another target: its {what} is {theirs}, {files.target_id} has {ours}.",
                hint="Give another --drafter, or --drafter none.",
            )
    log.info("drafter loaded", path=str(path), fingerprint=checkpoint.fingerprint[:12])
    return checkpoint


def memory_source(drafter: Checkpoint, target: Target) -> MemorySource | None:
    """What makes the drafter's rows, in the target's precision; None for a drafter that reads nothing of the target.

    Raises:
        CheckpointError: an ablation that no server serves.
    """
    config = drafter.config
    if config.memory_width == 0:
        return None
    rows = target.over_arrays(drafter.torch_rows(target.dtype, target.device))
    if config.kind == EAGLE2:
        return MemorySource(
            lambda state: rows(target.normed(state)), config.memory_width, target.layer_count, reads_state=True
        )
    if config.reads_last_hidden:
        raise CheckpointError(
            "A drafter without layer self-attention cannot be served.",
            hint="It is for comparison: moa-train evaluate measures it.",
        )
    state_layer = target.layer_count - config.reused_layers if config.reused_layers else None
    return MemorySource(rows, config.memory_width, state_layer)

"""From settings to a host: finds and loads the target and its drafter, computes what both ends compare."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError
from moa_shared.models import ModelFiles, load_target_model, load_tokenizer, resolve
from moa_shared.progress import Progress

from moa_server.host import Host, Served
from moa_server.settings import ServerSettings
from moa_server.stepper import Stepper
from moa_server.target import Target

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

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    served = Served(
        identity=pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
        ),
        dtype=settings.dtype,
        vocab_size=target.vocab_size,
        context_tokens=target.context_length,
        end_of_text=end_of_text(files, tokenizer.eos_token_id),
        decode=decode,
        reused_layers=0,
    )

    def before() -> None:  # OpenMP counts threads for each calling thread
        if settings.threads:
            torch.set_num_threads(settings.threads)

    return Host(served, Stepper(target, None), settings, before=before)


def end_of_text(files: ModelFiles, tokenizer_eos: int | None) -> frozenset[int]:
    """The token ids that end an answer: of the model, of its generation settings and of its tokenizer."""
    found: set[int] = set()
    path = files.folder / "generation_config.json"
    generation = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    for value in (files.config.get("eos_token_id"), generation.get("eos_token_id"), tokenizer_eos):
        found.update(value if isinstance(value, list) else [] if value is None else [value])
    return frozenset(int(token) for token in found)

"""How large the files may be that a server gives for drafting, by its target's config.json. Pure.

The bounds are generous, for a drafter may have layers of its own: what is to be refused is a thousand times as large.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError, ProtocolError
from moa_shared.programs.machine import si_bytes
from moa_shared.programs.progress import Progress

UNASKED_BYTES = 1_000_000_000  # what a model of 3 billion weights needs; one of 8 billion needs twice as much
MOST_TEXT = 64 << 20  # the largest tokenizer.json has 34 MB
HEADER_BYTES = 1 << 20  # of a file of tensors, at most, with vectors in float32
DRAFTER_LAYERS = 16  # published drafters have one to eight
_EMBEDDINGS = (pb.PART_EMBEDDINGS_BF16, pb.PART_HEAD_BF16, pb.PART_EMBEDDINGS_PACKED, pb.PART_HEAD_PACKED)
_LAYERS = (pb.PART_LAYERS_BF16, pb.PART_LAYERS_PACKED)


def check_part_sizes(entries: Iterable[pb.PartFile], config: Mapping[str, Any]) -> None:
    """Raises ProtocolError for a file that is larger than what it holds can be.

    `config`: the target's, which has passed `check_family`.
    """
    hidden, table = int(config["hidden_size"]), int(config["hidden_size"]) * int(config["vocab_size"])
    layer = _layer_numbers(config)
    for entry in entries:
        most = MOST_TEXT
        if entry.kind in _EMBEDDINGS:
            most = HEADER_BYTES + 2 * table  # bytes a number: packed ones take less than bfloat16
        elif entry.kind in _LAYERS:
            most = HEADER_BYTES + 2 * int(config["num_hidden_layers"]) * layer
        elif entry.kind == pb.PART_DRAFTER:  # in float32, with its own embeddings and head
            most = HEADER_BYTES + 4 * (2 * table + DRAFTER_LAYERS * (layer + 8 * hidden * hidden))
        if entry.size > most:
            hint = "Use another server, or give --model and --drafter."
            raise ProtocolError(
                f"at most {si_bytes(most)} of {entry.name} for this model", si_bytes(entry.size), hint=hint
            )


def check_allowed(nbytes: int, what: str, allowed: int, progress: Progress) -> None:
    """Raises ConfigError if more is to be fetched than the user allows, also when asked."""
    if nbytes > allowed and not progress.allows(f"Fetch {what} ({si_bytes(nbytes)})?"):
        gb = -(-nbytes // 100_000_000) / 10
        raise ConfigError(
            f"Fetching {what} takes {si_bytes(nbytes)}, more than the {si_bytes(allowed)} that are fetched unasked.",
            hint=f"Allow it with --fetch-gb {gb:g} (MOA_CLIENT_FETCH_GB), or do without (--drafter lookup).",
        )


def _layer_numbers(config: Mapping[str, Any]) -> int:
    hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    dim = max(int(config.get("head_dim") or hidden // heads), int(config.get("global_head_dim") or 0))
    inner = int(config["intermediate_size"])
    experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
    expert = int(config.get("moe_intermediate_size") or inner)
    return hidden * (6 * heads * dim + 3 * (2 * inner + experts * expert) + 16)

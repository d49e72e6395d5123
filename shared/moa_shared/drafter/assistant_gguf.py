"""Gemma 4's assistants in GGUF files (llama.cpp's architecture `gemma4-assistant`): as their folders are published.

A file says of its layers what one of a Gemma 4 does, and has no keys and values. Invariant: names, configuration and
order of rows are those of google's folders, and what is not understood is refused.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moa_shared.errors import CheckpointError
from moa_shared.models.gguf_configuration import hugging_face_name, make_config
from moa_shared.models.gguf_entry import is_gguf
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.models.storage.gguf_keys import FACTOR_TENSORS
from moa_shared.models.storage.tensors import BF16, F16, F32, I32, FileTensor, map_file, to_float32

ARCHITECTURE, _FAMILY = "gemma4-assistant", "gemma4"
_OUTSIDE = {  # by llama.cpp's names, and former ones
    **dict.fromkeys(("nextn.pre_projection.weight", "nextn.proj_pre.weight"), "pre_projection.weight"),
    **dict.fromkeys(("nextn.post_projection.weight", "nextn.proj_post.weight"), "post_projection.weight"),
    "masked_embd_centroids.weight": "masked_embedding.centroids.weight",
    **dict.fromkeys(("masked_embd_ordering", "masked_embd_ordering.weight"), "masked_embedding.token_ordering"),
}
_CODES = {F32: "F32", F16: "F16", BF16: "BF16", I32: "I32"}
_OF_ASSISTANTS = ("nextn_predict_layers", "attention.shared_kv_layers")  # all of its layers are so


def is_assistant(path: Path) -> bool:
    return is_gguf(path) and read_header(path, arrays=False).architecture == ARCHITECTURE


def assistant_config(path: Path) -> dict[str, Any]:
    header = read_header(path, arrays=False)
    own = {key.replace(ARCHITECTURE, _FAMILY, 1): value for key, value in header.metadata.items()}
    left = {key: value for key, value in own.items() if not key.endswith(_OF_ASSISTANTS)}
    layers = {name: entry for name, entry in header.tensors.items() if name not in _OUTSIDE}
    text = make_config(replace(header, metadata={**left, "general.architecture": _FAMILY}, tensors=layers))
    centroids = next((each for each in header.tensors if _OUTSIDE.get(each, "").endswith("centroids.weight")), None)
    config: dict[str, Any] = {"text_config": text, "use_ordered_embeddings": centroids is not None}
    if centroids is not None:
        config["num_centroids"] = header.tensors[centroids].shape[0]
    if chosen := header.integer("centroid_top_k"):
        config["centroid_intermediate_top_k"] = chosen
    return config


def assistant_tensors(path: Path) -> dict[str, FileTensor]:
    """What is in blocks becomes float16."""
    header = read_header(path, arrays=False)
    data, found = map_file(path), dict[str, FileTensor]()
    for name, entry in header.tensors.items():
        if name in FACTOR_TENSORS:
            continue
        theirs = _OUTSIDE.get(name) or hugging_face_name(name, "gemma4_text")
        if theirs is None:
            raise CheckpointError(f"The GGUF file {path} holds {name}, which no assistant has.")
        raw = data[entry.offset : entry.offset + entry.size]
        if entry.stored in _CODES:
            found[theirs] = FileTensor(_CODES[entry.stored], entry.shape, raw)
            continue
        rows = raw.reshape(*entry.shape[:-1], entry.stored.row_bytes(entry.shape[-1]))
        wide = to_float32(entry.stored, rows).astype(np.float16)
        found[theirs] = FileTensor("F16", entry.shape, wide.view(np.uint8).reshape(-1))
    return found

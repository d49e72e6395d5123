"""The parts of a target that a device needs to draft, as files of their own: embeddings, head, reused layers, text.

A folder that holds them next to config.json and the tokenizer reads like a model's folder, as long as nothing else is
asked of it. Packed, a matrix is in blocks as its file has it (`NAME.q4_1`, `NAME.q6_k` and so on), or in Q8_0 where the
kernels do not compute with its format, and vectors are float32; `WeightReader` reads both kinds.
"""

from collections.abc import Sequence
from typing import Literal

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import GENERATION_CONFIG, ModelFiles
from moa_shared.models.weights.weights import (
    EMBEDDINGS,
    HEAD,
    LAYER_EMBEDDINGS,
    LAYER_PROJECTION,
    LAYER_PROJECTION_NORM,
    WeightReader,
)

Precision = Literal["packed", "bf16"]
_ON_THE_SERVER = (LAYER_EMBEDDINGS, LAYER_PROJECTION, LAYER_PROJECTION_NORM)  # layers with them run nowhere else
TEXT_FILES = (
    "config.json",
    GENERATION_CONFIG,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def part_names(files: ModelFiles, last_layers: int = 0) -> list[str]:
    """The tensors that a client reads: embeddings, final norm, head and the last N decoder layers."""
    count = int(files.config["num_hidden_layers"])
    layers = layer_places(files, range(count - last_layers, count))
    return [name for name in layers if name != HEAD] + [HEAD]


def layer_names(files: ModelFiles, count: int) -> list[str]:
    return [name for name in part_names(files, count) if name not in (EMBEDDINGS, HEAD)]


def layer_places(files: ModelFiles, kept: Sequence[int]) -> dict[str, str]:
    """Stored name -> name in a model of only these layers."""
    count = int(files.config["num_hidden_layers"])
    if any(not 0 <= layer < count for layer in kept):
        raise ModelSourceError(
            f"{files.target_id} has the layers 0 to {count - 1}, requested were {list(kept)}.",
            hint="Ask for fewer layers.",
        )
    renumbered = {layer: place for place, layer in enumerate(kept)}
    places = {}
    for name in WeightReader(files).names():
        if not name.startswith("model.layers."):
            if name not in _ON_THE_SERVER:
                places[name] = name
            continue
        _, _, layer_text, rest = name.split(".", 3)
        layer = int(layer_text)
        if layer in renumbered:
            places[name] = f"model.layers.{renumbered[layer]}.{rest}"
    return places

"""How the states of a text's tokens become one vector, as a model's files have it.

Sources: sentence-transformers' `1_Pooling/config.json`, and `pooling_type` of GGUF (llama.cpp's `llama_pooling_type`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles

GGUF_KEY = "pooling_type"  # of the configuration that is made of a GGUF file


class Pooling(Enum):
    """What the vector of a text is."""

    MEAN = "mean"  # of all tokens' states
    LAST = "last"  # the last token's state


@dataclass(frozen=True, slots=True)
class ModelPooling:
    """How a model's states are pooled."""

    kind: Pooling = Pooling.MEAN
    is_trained: bool = False  # its files say so: it was made for embeddings


UNKNOWN_POOLING = ModelPooling()
_MODES = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_lasttoken": Pooling.LAST}
GGUF_TYPES = {1: Pooling.MEAN, 3: Pooling.LAST}


def find_pooling(files: ModelFiles) -> ModelPooling:
    """How a model is pooled; the mean where its files do not say.

    Raises:
        ModelSourceError: its files want what is not known here.
    """
    if (named := files.config.get(GGUF_KEY)) is not None:
        return ModelPooling(Pooling(named), is_trained=True)
    path = files.folder / "1_Pooling/config.json"
    if not path.is_file():
        return UNKNOWN_POOLING
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelSourceError(f"{path} cannot be read: {error}.", hint="Fetch the model again.") from None
    modes = content.items() if isinstance(content, Mapping) else ()
    wanted = [name for name, is_on in modes if name.startswith("pooling_mode") and is_on is True]
    kind = _MODES.get(wanted[0]) if len(wanted) == 1 else None
    if kind is None:
        raise ModelSourceError(
            f"{path} pools by {', '.join(wanted) or 'nothing'}, which is not known here.",
            hint=f"Known: {', '.join(_MODES)}.",
        )
    return ModelPooling(kind, is_trained=True)

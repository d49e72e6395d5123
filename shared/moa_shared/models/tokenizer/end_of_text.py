"""Which token ids end an answer: both ends must agree, since a device that writes standalone text decides it too."""

from __future__ import annotations

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.sources.generation import GENERATION_CONFIG, read_generation


def end_of_text(files: ModelFiles, tokenizer_eos: int | None) -> frozenset[int]:
    """The token ids that end an answer: of the model, of its generation settings and of its tokenizer.

    Raises:
        ModelSourceError: generation_config.json cannot be read.
    """
    found: set[int] = set()
    generation = read_generation(files)
    try:
        for value in (files.config.get("eos_token_id"), generation.get("eos_token_id"), tokenizer_eos):
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        return frozenset(int(token) for token in found)
    except (ValueError, TypeError) as error:
        path = files.folder / GENERATION_CONFIG
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint="Fetch the model again.") from None

"""Which model a published checkpoint says that it is for: by name, or by the tokenizer that lies next to it.

Sizes that fit prove little: Llama 3, 3.1 and what was distilled into them have the same ones. A tokenizer that gives
other tokens is proof; a name is only said, because the same model has many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moa_shared.errors import CheckpointError, ModelSourceError
from moa_shared.models import ModelFiles
from moa_shared.models.gguf.parts import model_name
from moa_shared.models.library.local_model import storage_label
from moa_shared.models.tokenizer.tokenizer_hash import hash_tokenizer
from moa_shared.text.json_text import parse_json
from moa_shared.text.plain_text import plain_line

_TOKENIZER = "tokenizer.json"
_MOST_NAME = 120  # characters
_STORED = re.compile(r"[-_. ](gguf|fp8|awq|gptq|int4|int8|bnb)\b.*", re.IGNORECASE)


def model_key(name: str) -> str:
    """What is left of a model's name that says which one it is, however it is stored and whoever repeats it.

    Equal for Qwen/Qwen3-8B, unsloth/Qwen3-8B-GGUF:Q4_K_M, Qwen3-8B-Q4_K_M.gguf and "Qwen3 8B".
    """
    last = name.rstrip("/").rsplit("/", 1)[-1].partition("@")[0].partition(":")[0]
    stem = model_name(Path(last)) if last.lower().endswith(".gguf") else last
    if label := storage_label(f"{stem}.gguf"):
        stem = stem.removesuffix(label).rstrip("-_.")
    stem = _STORED.sub("", stem)
    return re.sub(r"[^a-z0-9.]", "", stem.lower().removesuffix("-hf")).removeprefix("meta")


def named_target(config: Mapping[str, Any]) -> str:
    """The name of the model that a published config.json says the drafter is for; "": it does not say."""
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return plain_line(name)[:_MOST_NAME] if isinstance(name, str) else ""


def check_vocabulary(folder: Path, name: str, files: ModelFiles, root: Path) -> None:
    """Refuses a checkpoint whose folder holds a tokenizer with other tokens than the target's.

    Special tokens are not compared: models rename those that they do not use. A folder without a tokenizer passes, and
    so does one whose tokenizer cannot be read: neither says anything.

    Args:
        name: of the checkpoint, in messages.
        root: the cache folder.

    Raises:
        CheckpointError: it names the first token that differs.
    """
    if not (folder / _TOKENIZER).is_file():
        return
    try:
        if hash_tokenizer(folder, root) == files.tokenizer_hash:
            return
        theirs, ours = _tokens(folder), _tokens(files.tokenizer)
    except (ModelSourceError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    for number in sorted(theirs.keys() & ours.keys()):
        if theirs[number] != ours[number]:
            raise CheckpointError(
                f"{name} is for a model with other tokens: its token {number} is {plain_line(theirs[number])!r},"
                f" that of {files.target_id} is {plain_line(ours[number])!r}.",
                hint="Give a drafter that was trained for this target, or --drafter none.",
            )


def _tokens(folder: Path) -> dict[int, str]:
    """The ordinary tokens by their number."""
    content = parse_json((folder / _TOKENIZER).read_text("utf-8"))
    special = {int(token["id"]) for token in content.get("added_tokens") or []}
    vocabulary = content["model"]["vocab"]
    if not isinstance(vocabulary, Mapping):  # of SentencePiece: pieces with their scores
        vocabulary = {piece: number for number, (piece, _) in enumerate(vocabulary)}
    return {int(number): str(token) for token, number in vocabulary.items() if int(number) not in special}

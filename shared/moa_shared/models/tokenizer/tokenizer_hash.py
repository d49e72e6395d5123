"""The hash by which both ends know that they map text to the same token ids.

It covers what decides the ids (vocabulary, merges, added tokens, normaliser, pre-tokeniser), not how a version of the
tokenizers library spells it: a client and a server that read the same GGUF file themselves must agree.
The chat template is left out; it is the client's own affair.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.digest import canonical_json, recall, remember, remembered_hash
from moa_shared.programs.machine import collector_paused
from moa_shared.text.json_text import parse_json

_OTHER_FILES = ("tokenizer.model", "vocab.json", "merges.txt")
_SAVE = (
    "Save one where transformers is installed: AutoTokenizer.from_pretrained('{folder}').save_pretrained('{folder}')."
)


def hash_tokenizer(folder: Path, root: Path) -> str:
    """sha256 (hex) of the tokenizer in `folder`; remembered under `root` by the hash of its file."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        found = [name for name in _OTHER_FILES if (folder / name).is_file()]
        other = f", only {' and '.join(found)}" if found else ""
        raise ModelSourceError(f"The folder {folder} holds no tokenizer.json{other}.", hint=_SAVE.format(folder=folder))
    key = f"tokenizer-{remembered_hash(path, root)[:32]}"
    known = recall(root, key).get("meaning")
    if isinstance(known, str):
        return known
    try:
        with collector_paused():
            content = parse_json(path.read_text("utf-8"))
            digest = hashlib.sha256(canonical_json(_meaning(content))).hexdigest()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelSourceError(f"{path} cannot be read ({error}).", hint="Fetch the model again.") from error
    remember(root, key, {"meaning": digest})
    return digest


def _meaning(content: dict[str, Any]) -> list[object]:
    model = content["model"]
    merges = [merge.split(" ", 1) if isinstance(merge, str) else list(merge) for merge in model.get("merges") or []]
    added = sorted([token["id"], token["content"]] for token in content.get("added_tokens") or [])
    steps = [_without_defaults(content.get(step)) for step in ("normalizer", "pre_tokenizer")]
    whole_words = ["ignore_merges"] if model.get("ignore_merges") else []
    return [model.get("type"), model["vocab"], merges, added, steps, *whole_words]


def _without_defaults(value: object) -> object:
    """A step without the options that are off: newer versions add such."""
    if isinstance(value, dict):
        return {key: _without_defaults(inner) for key, inner in value.items() if inner not in (None, False)}
    if isinstance(value, list):
        return [_without_defaults(inner) for inner in value]
    return value

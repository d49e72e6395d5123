"""Tries a tokenizer and its chat template in a child process before anything else reads them, and hashes what it means.

A hostile tokenizer.json can take all memory or hours of the process that loads it, as a hostile template can. The hash
covers what decides the ids (vocabulary, merges, added tokens, normaliser, pre-tokeniser), not how a version of the
tokenizers library spells it, nor the chat template, which is the client's own affair.
State: the files that passed, by their hashes, under the cache folder: a later start pays nothing.
"""

import hashlib
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.cache import canonical_json, combine, recall, remember, remembered_hash
from moa_shared.plain_text import parse_json
from moa_shared.programs.machine import collector_paused
from moa_shared.sandbox.child import ChildError, TextChild

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


FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
SECONDS = 10  # of processor time: the largest vocabularies take two on a slow device
TRIAL = 5  # raised when files are tried in another way
_passed: set[str] = set()


def accept_tokenizer(folder: Path, root: Path) -> str:
    """The hash of the tokenizer in `folder`, whose files have been tried, as is remembered under `root`."""
    digest = hash_tokenizer(folder, root)
    hashes = [f"{name} {remembered_hash(folder / name, root)}" for name in FILES if (folder / name).is_file()]
    versions = [f"{TRIAL}", *map(version, ("tokenizers", "jinja2"))]
    key = f"tried-{combine([*versions, *hashes])[:32]}"
    if key not in _passed and not recall(root, key):
        try:
            with closing(TextChild(SECONDS)) as child:
                child.try_files(folder)
        except ChildError as error:
            raise ModelSourceError(
                f"The tokenizer or the chat template in {folder} cannot be used: {str(error).rstrip('.')}.",
                hint="The files are damaged or hostile: use another model or server.",
            ) from None
        remember(root, key, {"tried": True})
    _passed.add(key)
    return digest

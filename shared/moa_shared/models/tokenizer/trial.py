"""Tries a tokenizer and its chat template in a child process before anything else reads them.

A hostile tokenizer.json can take all memory or hours of the process that loads it, as a hostile template can.
State: the files that passed, by their hashes, under the cache folder: a later start pays nothing.
"""

from __future__ import annotations

from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.digest import combine, recall, remember, remembered_hash
from moa_shared.models.tokenizer.tokenizer_hash import hash_tokenizer
from moa_shared.sandbox.child import ChildError, TextChild

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

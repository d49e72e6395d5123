"""Model sources: find, fetch, convert and read a target.

`resolve` turns what a user names into `ModelFiles`; the `load_*` functions read them. Importing this package imports
neither torch nor transformers: the loading half comes in on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moa_shared.models.files import ModelFiles
from moa_shared.models.source import DEFAULT, resolve

if TYPE_CHECKING:
    from moa_shared.models.loading import load_config, load_part, load_target_model, load_tokenizer, part_names

__all__ = [
    "DEFAULT",
    "ModelFiles",
    "load_config",
    "load_part",
    "load_target_model",
    "load_tokenizer",
    "part_names",
    "resolve",
]
_LOADING = frozenset({"load_config", "load_part", "load_target_model", "load_tokenizer", "part_names"})


def __getattr__(name: str) -> Any:
    if name in _LOADING:
        from moa_shared.models import loading

        return getattr(loading, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

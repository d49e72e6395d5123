"""Model sources: find, fetch and read a target.

`resolve` turns what a user names into `ModelFiles`; `WeightReader` reads their weights with numpy, `load_tokenizer`
their tokenizer. Importing this package imports neither torch nor transformers: what needs them comes in on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moa_shared.models.files import ModelFiles
from moa_shared.models.source import DEFAULT, resolve
from moa_shared.models.weights import WeightReader

if TYPE_CHECKING:
    from moa_shared.models.loading import load_config, load_target_model
    from moa_shared.models.tokenizer import load_tokenizer

_LATER = {"load_config": "loading", "load_target_model": "loading", "load_tokenizer": "tokenizer"}
__all__ = ["DEFAULT", "ModelFiles", "WeightReader", "load_config", "load_target_model", "load_tokenizer", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

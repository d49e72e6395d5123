"""Model sources: find, fetch and read a target.

`resolve` turns what a user names into `ModelFiles`; `WeightReader` reads their weights with numpy, `load_tokenizer`
their tokenizer. Importing this package imports neither torch nor transformers: what needs them comes in on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.sources.source import DEFAULT, resolve
from moa_shared.models.weights.parts import part_names
from moa_shared.models.weights.weights import WeightReader

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import load_tokenizer
    from moa_shared.models.weights.loading import load_config, load_part, load_target_model

_LATER = dict.fromkeys(("load_config", "load_part", "load_target_model"), "weights.loading")
_LATER["load_tokenizer"] = "tokenizer.tokenizer"
__all__ = ["DEFAULT", "ModelFiles", "WeightReader", "load_config", "load_part", "load_target_model", "load_tokenizer"]
__all__ += ["part_names", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)

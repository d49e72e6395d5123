"""Model sources: find, fetch and read a target.

`resolve` turns what a user names into `ModelFiles`; `WeightReader` reads their weights with numpy, `load_tokenizer`
their tokenizer. Importing this package imports neither torch nor transformers: what needs them does on first use.
"""

from moa_shared.models.files import ModelFiles
from moa_shared.models.source import DEFAULT, resolve
from moa_shared.models.tokenizer import load_tokenizer
from moa_shared.models.weights import WeightReader, load_config, load_target_model

__all__ = ["DEFAULT", "ModelFiles", "WeightReader", "load_config", "load_target_model", "load_tokenizer", "resolve"]

"""Plants one error in a module as it is imported: `MOA_MUTANT='{"file": ..., "before": ...}' pytest -p tests.mutants.plugin`."""

import json
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from types import CodeType
from typing import Any

from tests.mutants.errors import ROOT, PlantedError, module_name


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(ERROR.plant(ROOT), self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        file = str(ROOT / ERROR.file)
        planted = fullname == module_name(ERROR.file)
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file)) if planted else None


ERROR = PlantedError(**json.loads(os.environ["MOA_MUTANT"]))
sys.meta_path.insert(0, _Finder())

"""Plants one error in a module as it is imported: `MOA_MUTANT='{"file": ..., "before": ...}' pytest -p tests.mutants.plugin`."""

from __future__ import annotations

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
    source = ""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.source, self.path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    def __init__(self, error: PlantedError) -> None:
        self._error = error
        self._source = error.plant(ROOT)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname != module_name(self._error.file):
            return None
        loader = _Loader(fullname, str(ROOT / self._error.file))
        loader.source = self._source
        return spec_from_file_location(fullname, ROOT / self._error.file, loader=loader)


if planted := os.environ.get("MOA_MUTANT"):
    sys.meta_path.insert(0, _Finder(PlantedError(**json.loads(planted))))

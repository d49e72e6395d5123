"""Results of finished parts in a folder, one file each, so that a killed program goes on where it was.

State: the files. Invariant: a file is whole or not there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from moa_shared.errors import DiskFullError
from moa_shared.programs.atomic import whole_file


class FinishedParts:
    """A folder of results by their parts' names; made when there is one to keep."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def keep(self, name: str, result: str) -> None:
        """Raises DiskFullError where there is no room."""
        try:
            with whole_file(self._path(name)) as partial:
                partial.write_text(result, encoding="utf-8")
        except OSError as error:
            raise DiskFullError(f"The finished part {self._path(name)} cannot be written ({error.strerror}).") from None

    def read(self, name: str) -> str:
        return self._path(name).read_text(encoding="utf-8")

    def drop(self, name: str) -> None:
        """Forgets a result that is kept elsewhere by now."""
        self._path(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Removes the folder and all that is left in it."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

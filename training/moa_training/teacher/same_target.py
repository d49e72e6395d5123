"""A target that another process, perhaps on another machine, is to find and use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import MismatchError
from moa_shared.models import DEFAULT, ModelFiles, resolve
from moa_shared.programs.progress import Progress


def name_anywhere(name: str) -> str:
    """A name of a target or a drafter that means the same in every working folder: paths become absolute."""
    path = Path(name).expanduser()
    return str(path.resolve()) if name.strip() and name != DEFAULT and path.exists() else name


@dataclass(frozen=True, slots=True)
class SameTarget:
    """A target by its name, and what it must be.

    Args:
        name: as of `resolve`: "default", a hub id, a folder or a .gguf file.
    """

    name: str
    fingerprint: str

    def find(self, progress: Progress) -> ModelFiles:
        """Raises MismatchError where the name means another target here."""
        files = resolve(self.name, progress=progress)
        if files.fingerprint != self.fingerprint:
            raise MismatchError(
                f"{self.name} is another target on this worker ({files.fingerprint[:12]}, "
                f"the work was planned for {self.fingerprint[:12]}).",
                hint="Give every node the same files, or name the target by its hub id.",
            )
        return files

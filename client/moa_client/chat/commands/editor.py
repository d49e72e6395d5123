"""Has a user write a question in an editor: $VISUAL, else $EDITOR, else the first of a few that is installed."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from moa_shared.errors import ConfigError

USUAL = ("nano", "vim", "vi")


def find_editor(environment: Mapping[str, str] = os.environ) -> Sequence[str]:
    """The command of the user's editor."""
    for variable in ("VISUAL", "EDITOR"):
        if named := environment.get(variable, "").strip():
            try:
                return shlex.split(named)
            except ValueError:
                raise ConfigError(f"${variable} is {named!r}: a quotation mark is open.", hint="Close it.") from None
    for name in USUAL:
        if shutil.which(name, path=environment.get("PATH")):
            return (name,)
    raise ConfigError("There is no editor.", hint="Name yours: export EDITOR=...")


async def edit_text(text: str) -> str:
    """The text as the user leaves it; empty if the editor says that it has failed."""
    command = find_editor()
    with tempfile.TemporaryDirectory(prefix="moa-") as folder:  # for this user alone
        path = Path(folder) / "question.md"
        path.write_text(text + "\n" if text else "", "utf-8")
        before = signal.signal(signal.SIGINT, lambda number, frame: None)  # Ctrl-C is the editor's
        try:
            process = await asyncio.create_subprocess_exec(*command, str(path))
            code = await process.wait()
        except OSError as error:
            raise ConfigError(
                f"The editor {command[0]} cannot be started: {error.strerror}.", hint="Name another: export EDITOR=..."
            ) from None
        finally:
            signal.signal(signal.SIGINT, before)
        return path.read_text("utf-8", errors="replace").strip() if code == 0 else ""

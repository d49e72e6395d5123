"""Other programs of this desktop: the clipboard, and an editor in which a user writes a question.

Text is copied with the desktop's program where there is one, and by asking the terminal (OSC 52), because over SSH it
alone is where the user is. No terminal says whether it did.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from moa_shared.errors import ConfigError

# Program: the variable without which it has no clipboard to write to.
PROGRAMS: Mapping[Sequence[str], str] = {
    ("wl-copy",): "WAYLAND_DISPLAY",
    ("xclip", "-selection", "clipboard"): "DISPLAY",
    ("xsel", "--clipboard", "--input"): "DISPLAY",
    ("pbcopy",): "",
    ("clip.exe",): "WSL_DISTRO_NAME",
}
PROGRAM_SECONDS = 3.0  # some stay to serve the clipboard: their parent ends at once
MOST_OSC_BYTES = 74_994  # xterm drops more
CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)(?:^ {0,3}\1[`~]* *$|\Z)", re.MULTILINE | re.DOTALL)


def last_code(text: str) -> str:
    """The last block of code in a text; empty if there is none."""
    blocks = [match[2] for match in CODE.finditer(text)]
    return blocks[-1] if blocks else ""


def find_program(environment: Mapping[str, str] = os.environ) -> Sequence[str] | None:
    """The command that copies its standard input here; None: there is none."""
    for command, variable in PROGRAMS.items():
        if (not variable or environment.get(variable)) and shutil.which(command[0], path=environment.get("PATH")):
            return command
    return None


def terminal_sequence(text: str) -> str:
    """What asks a terminal to copy a text; empty if it is too long for most."""
    data = text.encode()
    return f"\x1b]52;c;{b64encode(data).decode()}\x07" if len(data) <= MOST_OSC_BYTES else ""


async def copy_text(text: str, terminal: Callable[[str], object] | None) -> str:
    """Copies a text; what was done, for the user.

    `terminal`: writes to it; None: there is none that acts on sequences.
    """
    size = f"{len(text)} characters"
    command = find_program()
    has_copied = command is not None and await _pass_to(command, text)
    sequence = terminal_sequence(text) if terminal is not None else ""
    if sequence and terminal is not None:
        terminal(sequence)
        sys.stdout.flush()
    if has_copied and command is not None:
        return f"Copied {size} with {command[0]}."
    if sequence:
        return (
            f"Asked the terminal to copy {size} (OSC 52); some do not, or only after it was allowed in their settings."
        )
    return "Nothing here can copy: install wl-clipboard or xclip."


async def _pass_to(command: Sequence[str], text: str) -> bool:
    nothing = asyncio.subprocess.DEVNULL
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=nothing, stderr=nothing
        )
    except OSError:
        return False
    try:
        async with asyncio.timeout(PROGRAM_SECONDS):
            await process.communicate(text.encode())
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        return False
    return process.returncode == 0


USUAL = ("nano", "vim", "vi")


def find_editor(environment: Mapping[str, str] = os.environ) -> Sequence[str]:
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

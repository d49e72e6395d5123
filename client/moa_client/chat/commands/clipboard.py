"""Copies text: with the program of this desktop where there is one, and by asking the terminal (OSC 52).

The terminal is asked too, because over SSH it alone is where the user is. No terminal says whether it did.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

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

    Args:
        terminal: writes to it; None: there is none that acts on sequences.
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

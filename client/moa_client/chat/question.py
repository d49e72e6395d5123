"""The question of a person: what standard input brings, the command line's prompt, and text files that go with it.

The frame of a file is part of the question, so that the history, a retry and another surface have it, too:

    <file name="notes.txt">
    their text
    </file>

    the question
"""

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import TextIO

from moa_shared.errors import ConfigError, DataError, NotFoundError
from moa_shared.plain_text import is_text, plain_line

MOST_CHARACTERS = 1 << 20  # of standard input: far beyond any context
QUIET_SECONDS = 2.0  # a program that writes a question has begun by then


def read_question(prompt: str | None, stdin: TextIO, remark: Callable[[str], None]) -> str | None:
    """Standard input, a new line, and the prompt; None for a chat.

    With a prompt, a terminal or another device (/dev/null) is not read. One new line at the end of the input is not
    part of the question: most programs write one.

    `remark`: is told if no input comes.
    """
    if prompt is None and stdin.isatty():
        return None
    try:
        text = "" if prompt is not None and _is_device(stdin) else _read(stdin, remark)
        question = "\n".join(part for part in (text.removesuffix("\n"), prompt or "") if part.strip())
    except UnicodeError:
        raise _not_text() from None
    if not is_text(question):
        raise _not_text()
    if not question:
        raise ConfigError("The prompt is empty.", hint="Give a prompt as an argument or on standard input.")
    return question


def _not_text() -> DataError:
    return DataError("The prompt is not text in UTF-8.", hint="Convert it first, for example with iconv.")


def _is_device(stdin: TextIO) -> bool:
    try:
        return stat.S_ISCHR(os.fstat(stdin.fileno()).st_mode)
    except OSError:  # no file of the system
        return False


def _read(stdin: TextIO, remark: Callable[[str], None]) -> str:
    if not _has_begun(stdin):
        remark("(Waiting for standard input to end. Where there is none, add </dev/null to the command.)")
    text = stdin.read(MOST_CHARACTERS + 1)
    if len(text) > MOST_CHARACTERS:
        raise DataError(f"Standard input has more than {MOST_CHARACTERS} characters.", hint="Ask about a part of it.")
    return text


def _has_begun(stdin: TextIO) -> bool:
    try:
        return bool(select([stdin], [], [], QUIET_SECONDS)[0])
    except OSError:
        return True


MOST_BYTES = 1 << 18  # of all files of a question: as JSON, a message to the daemon holds them in any script
_FRAME = re.compile(r'<file name="([^"\n]*)">\n.*?\n</file>\n\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFile:
    name: str
    text: str


def read_text_file(path: Path) -> TextFile:
    """Reads a file of text in UTF-8, with a BOM or without; its lines end as those of a question."""
    shown = plain_line(str(path))
    try:
        if not stat.S_ISREG(path.expanduser().stat().st_mode):
            raise DataError(f"{shown} is not a file.", hint="Name a text file.")
        with path.expanduser().open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NotFoundError(f"The file {shown} cannot be read: {reason}.", hint="Name a text file.") from None
    if len(data) > MOST_BYTES:
        raise _too_long(f"{shown} has")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise DataError(f"{shown} is not text in UTF-8.", hint="Convert it first, for example with iconv.")
    return TextFile(plain_line(path.name).replace('"', "'"), text.replace("\r\n", "\n").removesuffix("\n"))


def with_files(question: str, files: Sequence[TextFile]) -> str:
    if sum(len(file.text.encode()) for file in files) > MOST_BYTES:
        raise _too_long("The files have together")
    frames = [f'<file name="{file.name}">\n{file.text}\n</file>\n\n' for file in files]
    return "".join(frames) + question


def file_words(file: TextFile) -> str:
    return f"{file.name} goes with the next question: {len(file.text):,} characters."


def folded(question: str) -> str:
    """A question for a person: of its files, the names alone."""
    return _FRAME.sub(r"[\1] ", question)


def _too_long(what: str) -> DataError:
    return DataError(f"{what} more than {MOST_BYTES >> 10} KiB.", hint="Ask about a part of it.")

"""Text files that go with a question: read, checked, and framed with their names. Pure but for reading them.

The frame is part of the question, so that the history, a retry and another surface have it, too:

    <file name="notes.txt">
    their text
    </file>

    the question
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import DataError, NotFoundError
from moa_shared.text.plain_text import plain_line

MOST_BYTES = 1 << 18  # of all files of a question: as JSON, a message to the daemon holds them in any script
PICTURES = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8")
PICTURE_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".heic", ".avif", ".ico")
_FRAME = re.compile(r'<file name="([^"\n]*)">\n.*?\n</file>\n\n', re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file and its text."""

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
    if path.suffix.lower() in PICTURE_ENDINGS or data.startswith(PICTURES):
        raise DataError(f"{shown} is a picture: models read text only.", hint="Describe what it shows.")
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
    """A question with the files that go with it."""
    if sum(len(file.text.encode()) for file in files) > MOST_BYTES:
        raise _too_long("The files have together")
    frames = [f'<file name="{file.name}">\n{file.text}\n</file>\n\n' for file in files]
    return "".join(frames) + question


def file_words(file: TextFile) -> str:
    """That a file goes with the next question."""
    return f"{file.name} goes with the next question: {len(file.text):,} characters."


def folded(question: str) -> str:
    """A question for a person: of its files, the names alone."""
    return _FRAME.sub(r"[\1] ", question)


def _too_long(what: str) -> DataError:
    return DataError(f"{what} more than {MOST_BYTES >> 10} KiB.", hint="Ask about a part of it.")

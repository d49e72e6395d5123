"""The question of a single answer: what standard input brings, then the prompt of the command line."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from select import select
from typing import TextIO

from moa_shared.errors import ConfigError, DataError
from moa_shared.text.unicode_text import is_text

MOST_CHARACTERS = 1 << 20  # of standard input: far beyond any context
QUIET_SECONDS = 2.0  # a program that writes a question has begun by then


def read_question(prompt: str | None, stdin: TextIO, remark: Callable[[str], None]) -> str | None:
    """Standard input, a new line, and the prompt; None for a chat.

    With a prompt, a terminal or another device (/dev/null) is not read. One new line at the end of the input is not
    part of the question: most programs write one.

    Args:
        remark: is told if no input comes.
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
    """Whether input, or its end, comes soon."""
    try:
        return bool(select([stdin], [], [], QUIET_SECONDS)[0])
    except OSError:
        return True

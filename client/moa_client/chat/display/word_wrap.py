"""Wraps remarks on a terminal at whole words, keeping the second column of tables. Pure."""

from __future__ import annotations

import re

from wcwidth import wrap

COLUMN = re.compile(r"\S.*?\s{2,}(?=\S)")  # the text before the second column of a table


def wrap_words(text: str, columns: int) -> str:
    """The text in lines of at most `columns` cells; overflow continues below its own column."""
    return "\n".join("\n".join(_wrap_line(line, columns)) for line in text.split("\n"))


def _wrap_line(line: str, columns: int) -> list[str]:
    table = COLUMN.match(line)
    indent = table.end() if table else len(line) - len(line.lstrip())
    if indent > columns // 2:
        indent = 0
    return wrap(line, columns, subsequent_indent=" " * indent, break_on_hyphens=False) or [""]

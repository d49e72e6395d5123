"""Text files in a question, as chat and page put them there: each in a frame of its own, before the question. Pure.

A frame is a line with the file's name, and its text between fences that are longer than any run of backticks in it:

    File notes.txt:
    ```
    text
    ```

After each frame comes an empty line. The page's script has the same rules.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from mimetypes import guess_type
from pathlib import PurePath

from moa_shared.errors import ConfigError

MOST_FILE_BYTES = 512 * 1024  # 128,000 tokens, as many as large contexts hold; half of what a surface may send
_SHORTEST_FENCE = 3
_FRAME = re.compile(r"File ([^\n]+):\n(`{3,})\n(.*?)\n\2\n\n", re.DOTALL)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of a question.

    Args:
        name: without folders, on one line.
        text: without a newline at its end.
    """

    name: str
    text: str


def text_file(path: str, content: bytes) -> TextFile:
    """The text file with this content.

    Raises:
        ConfigError: it is too large, or no text in UTF-8.
    """
    name = re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]", "_", PurePath(path).name) or "file"
    if len(content) > MOST_FILE_BYTES:
        raise ConfigError(
            f"{name} has {len(content):,} bytes, more than the {MOST_FILE_BYTES:,} that a file of a question may have.",
            hint="Give a part of it.",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        kind = guess_type(name)[0] or ""
        what = "a picture" if kind.startswith("image/") else "not text in UTF-8"
        raise ConfigError(f"{name} is {what}: models here read text only.", hint="")
    return TextFile(name, text.replace("\r\n", "\n").removesuffix("\n"))


def framed(question: str, files: Sequence[TextFile]) -> str:
    """A question with its files, as it is asked."""
    return "".join(map(_frame, files)) + question


def unframed(asked: str) -> tuple[str, list[TextFile]]:
    """The question and the files of a question as it was asked."""
    files = []
    while (found := _FRAME.match(asked)) is not None:
        files.append(TextFile(found[1], found[3]))
        asked = asked[found.end() :]
    return asked, files


def _frame(file: TextFile) -> str:
    longest = max((len(run) for run in re.findall("`+", file.text)), default=0)
    fence = "`" * max(_SHORTEST_FENCE, longest + 1)
    return f"File {file.name}:\n{fence}\n{file.text}\n{fence}\n\n"

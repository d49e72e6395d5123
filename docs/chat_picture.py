"""Draws docs/img/chat.svg: the chat in the middle of a cut, from its recording. `python docs/chat_picture.py`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

DOCS = Path(__file__).resolve().parent
CAST = DOCS / "recordings" / "chat-through-a-cut.cast"
PICTURE = DOCS / "img" / "chat.svg"
DIM, BLINK = 2, 5  # pyte knows no dim: it blinks instead


class Display(pyte.Screen):
    """What a terminal shows."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        super().select_graphic_rendition(*(BLINK if each == DIM else each for each in attributes))


def screen_with_most_dim(cast: Path) -> Display:
    """The screen as it was when most of its text was provisional."""
    header, *events = map(json.loads, cast.read_text().splitlines())

    def shown(count: int) -> Display:
        display = Display(header["width"], header["height"])
        stream = pyte.Stream(display)
        for _, _, data in events[:count]:
            stream.feed(data)
        return display

    return max((shown(count) for count in range(1, len(events) + 1)), key=_dim_cells)


def _dim_cells(display: Display) -> int:
    return sum(
        display.buffer[row][at].blink and display.buffer[row][at].data != " "
        for row in range(display.lines)
        for at in range(display.columns)
    )


def drawn(display: Display) -> str:
    """The screen as an SVG."""
    rows = [display.buffer[row] for row in range(display.lines)]
    texts = []
    for row in rows:
        text = Text()
        for at in range(display.columns):
            text.append(row[at].data, "grey50" if row[at].blink else "underline" if row[at].underscore else "")
        text.rstrip()
        texts.append(text)
    while texts and not texts[-1].plain:
        texts.pop()
    console = Console(record=True, width=display.columns, file=open("/dev/null", "w"))  # noqa: SIM115
    for text in texts:
        console.print(text)
    picture = console.export_svg(title="moa-client chat")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # a reader's own font, from no other host


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(drawn(screen_with_most_dim(CAST)))
    print(PICTURE)


if __name__ == "__main__":
    main()

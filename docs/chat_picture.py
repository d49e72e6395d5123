"""Draws docs/img/cut.svg, which moves: a chat through a cut, from its recording. `python docs/chat_picture.py`."""

import json
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

DOCS = Path(__file__).resolve().parent
CAST = DOCS / "recordings" / "tunnel-with-a-companion.cast"
PICTURE = DOCS / "img" / "cut.svg"
DIM, BLINK = 2, 5  # pyte knows no dim: it blinks instead
STEP_S, LAST_S = 0.25, 4.0  # between two pictures, and how long the last one stays
WIDTH, HEIGHT = 8.4, 18  # of a character, in pixels
FIRST = "Talking to"  # begins the first line that is drawn
STYLE = """text { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: #d4d6da; white-space: pre }
.dim { fill: #83888f } .italic { font-style: italic; fill: #83888f } .line { text-decoration: underline }
.row { visibility: hidden } .last { visibility: visible }"""  # the last picture is all that some readers show


class Display(pyte.Screen):
    """What a terminal shows."""

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        super().select_graphic_rendition(*(BLINK if each == DIM else each for each in attributes))

    def rows(self) -> list[str]:
        """Its lines, from the first that is drawn on, as parts of an SVG."""
        first = next((at for at, line in enumerate(self.display) if line.startswith(FIRST)), self.lines)
        return [self._row(self.buffer[at]) for at in range(first, self.lines)]

    def _row(self, cells: dict[int, pyte.screens.Char]) -> str:
        shown = [cells[at] for at in range(self.columns)]
        while shown and shown[-1].data == " ":
            shown.pop()
        parts = []
        for style, run in groupby(shown, _style):
            text = escape("".join(cell.data for cell in run))
            parts.append(f'<tspan class="{style}">{text}</tspan>' if style else text)
        return "".join(parts)


def _style(cell: pyte.screens.Char) -> str:
    if cell.blink:
        return "italic" if cell.italics else "dim"
    return "line" if cell.underscore else ""


def pictures(cast: Path) -> Iterator[list[str]]:
    """The screen every `STEP_S` from the question on."""
    header, *events = map(json.loads, cast.read_text().splitlines())
    display = Display(header["width"], header["height"])
    stream, due = pyte.Stream(display), 0.0
    for at, _, data in events:
        while due and at >= due:
            yield display.rows()
            due += STEP_S
        stream.feed(data)
        if not due and any(line.startswith("> ") and line[2:].strip() for line in display.display):
            due = at
    yield display.rows()


def drawn(cast: Path) -> str:
    """The recording as an SVG in which each line is shown while it is what it is."""
    shown = list(pictures(cast))
    seconds = len(shown) * STEP_S + LAST_S
    rows, frames = max(map(len, shown)), list[str]()
    texts = [f"<style>{STYLE}</style>"]
    for row in range(rows):
        lines = [(picture[row] if row < len(picture) else "") for picture in shown]
        at = 0
        for line, same in groupby(lines):
            begin, at = at, at + len(list(same))
            if not line:
                continue
            end = seconds if at == len(lines) else at * STEP_S
            name = f"f{len(frames)}"
            from_, to = 100 * begin * STEP_S / seconds, 100 * end / seconds
            hides = f" {to:.2f}% {{ visibility: hidden }}" if at < len(lines) else ""
            begins = "0% { visibility: hidden } " if begin else ""
            frames.append(f"@keyframes {name} {{ {begins}{from_:.2f}% {{ visibility: visible }}{hides} }}")
            place = f'x="12" y="{24 + HEIGHT * row}" style="animation: {name} {seconds:.2f}s step-end infinite"'
            texts.append(f'<text class="{"row" if at < len(lines) else "row last"}" {place}>{line}</text>')
    columns = json.loads(cast.read_text().split("\n", 1)[0])["width"]
    width, height = 24 + WIDTH * columns, 24 + HEIGHT * rows
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">'
    ground = '<rect width="100%" height="100%" rx="8" fill="#1b1d21"/>'
    return "\n".join([head, ground, *texts, f"<style>{' '.join(frames)}</style></svg>\n"])


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(drawn(CAST))
    print(PICTURE)


if __name__ == "__main__":
    main()

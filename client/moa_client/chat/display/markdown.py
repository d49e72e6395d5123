"""How the characters of an answer in Markdown look on a terminal. Pure.

Each character keeps its place: it is shown as it is, as another one, or not at all, so that a screen can lay text out,
and correct it, character by character. For the same reason this is no general parser, which would not say which
characters are marks: headings, bold, italics, code and bullets, each decided by its own line, and blocks of code.
A mark whose counterpart has not come yet is shown as it is.
"""

from __future__ import annotations

import re
from enum import IntFlag
from typing import NamedTuple

BULLET = "\u2022"
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6} +")
ITEM = re.compile(r"\s*([-*+]) +(?=\S)")
SPANS = re.compile(
    r"(?P<code>`+)(?!`)(?P<in_code>.+?)(?<!`)(?P=code)(?!`)"
    r"|(?P<bold>\*\*|(?<!\w)__)(?=\S)(?P<in_bold>.+?)(?<=\S)(?P=bold)(?!\w)"
    r"|(?P<italic>(?<![\w*])\*|(?<![\w_])_)(?=[^\s*_])(?P<in_italic>[^*_]*?[^\s*_]|[^\s*_])(?P=italic)(?!\w)"
)


class Weight(IntFlag):
    """What makes text stand out."""

    PLAIN = 0
    BOLD = 1
    ITALIC = 2
    CODE = 4


class Look(NamedTuple):
    """How one character looks.

    Args:
        shown: in its place; None: itself.
    """

    weight: Weight = Weight.PLAIN
    shown: str | None = None


PLAIN = Look()
CODE = Look(Weight.CODE)


class Markdown:
    """The block in which text begins, as far as its end is known.

    State: the beginning of the line that is not complete, and whether it is in a block of code.
    """

    def __init__(self) -> None:
        self._line = ""
        self._fence = ""

    def pass_by(self, text: str) -> None:
        """Takes in text that will not change any more."""
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._fence = _fence_after(self._fence, line)

    def go_back(self, text: str) -> None:
        """Gives back the end of the incomplete line."""
        self._line = self._line.removesuffix(text)

    def looks(self, text: str) -> list[Look]:
        """The look of each character of the text that follows."""
        looks: list[Look] = []
        fence, skipped = self._fence, len(self._line)
        for number, line in enumerate((self._line + text).split("\n")):
            if number:
                looks.append(PLAIN)  # the line break
            looks += _line_looks(line, fence)
            fence = _fence_after(fence, line)
        return looks[skipped:]


def _fence_after(fence: str, line: str) -> str:
    """The mark that opened the block of code in which the next line is; empty: it is in none."""
    found = FENCE.match(line)
    if found is None:
        return fence
    if not fence:
        return found[1]
    return "" if line.strip() == found[1] and found[1].startswith(fence) else fence


def _line_looks(line: str, fence: str) -> list[Look]:
    if fence or FENCE.match(line):
        return [CODE] * len(line)
    looks = [PLAIN] * len(line)
    begin = 0
    if heading := HEADING.match(line):
        begin = heading.end()
        looks[:begin] = [Look(shown="")] * begin
        looks[begin:] = [Look(Weight.BOLD)] * (len(line) - begin)
    elif item := ITEM.match(line):
        begin = item.end()
        looks[item.start(1)] = Look(shown=BULLET)
    _mark_spans(line, begin, len(line), looks)
    return looks


def _mark_spans(line: str, begin: int, end: int, looks: list[Look]) -> None:
    for span in SPANS.finditer(line, begin, end):
        kind = span.lastgroup or ""
        weight = Weight[kind.removeprefix("in_").upper()]
        inner, last = span.span(kind)
        for at in range(span.start(), span.end()):
            is_mark = not inner <= at < last
            looks[at] = Look(looks[at].weight | weight, "" if is_mark else looks[at].shown)
        if weight is not Weight.CODE:
            _mark_spans(line, inner, last, looks)

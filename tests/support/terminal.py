"""An emulated terminal, alone or with a program on it."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pexpect
import pyte

from tests.support.programs import PATIENCE


class Display(pyte.HistoryScreen):
    """What a terminal shows, and what has scrolled out of it; pyte knows no dim: it blinks instead."""

    def __init__(self, columns: int, rows: int, answer: Callable[[str], object] = lambda _: None) -> None:
        super().__init__(columns, rows, history=100_000)
        self._answer = answer
        self._stream = pyte.ByteStream(self)

    def show(self, data: bytes | str) -> None:
        self._stream.feed(data.encode() if isinstance(data, str) else data)

    def select_graphic_rendition(self, *attributes: int, private: bool = False) -> None:
        super().select_graphic_rendition(*(5 if attribute == 2 else attribute for attribute in attributes))

    def write_process_input(self, data: str) -> None:
        """Answers, for one, where the cursor is."""
        self._answer(data)

    @property
    def text(self) -> str:
        """All lines without the blanks at their ends, those that have scrolled out too."""
        rows = [*self.history.top, *(self.buffer[row] for row in range(self.lines))]
        return "\n".join("".join(row[at].data for at in range(self.columns)).rstrip() for row in rows)

    def _cells_with(self, style: str) -> str:
        rows = [self.buffer[row] for row in range(self.lines)]
        return "".join(row[at].data for row in rows for at in range(self.columns) if getattr(row[at], style))

    dim = property(lambda self: self._cells_with("blink"))  # the provisional text on the screen
    italics = property(lambda self: self._cells_with("italics"))  # what of it is less likely to stay
    underlined = property(lambda self: self._cells_with("underscore"))  # what is marked as a correction


class Terminal:
    """A program on a pseudo-terminal, and what it shows there."""

    def __init__(self, command: Sequence[str], environment: dict[str, str]) -> None:
        program, *arguments = command
        self.process: pexpect.spawn[bytes] = pexpect.spawn(
            program, arguments, PATIENCE, env=environment, dimensions=(40, 120)
        )
        self.process.delaybeforesend = None
        self.display = Display(120, 40, self.type)
        self.raw = b""
        self._seen = 0

    def type(self, text: str) -> None:
        self.process.send(text)

    def at_prompt(self, text: str) -> None:
        """Types when the program asks: what comes before is still the terminal's, which would make Enter of Return."""
        self.wait_for(r"\n> ?\n")
        self.type(text)

    def enter(self, line: str, *patterns: str) -> str:
        """Types a line when the program asks, and waits for each of these; the newest part of what is shown."""
        self.at_prompt(line + "\r")
        return "".join([self.wait_for(pattern) for pattern in patterns][-1:])

    @property
    def text(self) -> str:
        return "\n" + self.display.text

    @property
    def echoes(self) -> bool:
        """Whether the terminal itself shows what is typed."""
        return bool(self.process.getecho())

    def wait_for(self, pattern: str) -> str:
        """Reads on until the screen shows the pattern below what was waited for before; that part of it."""
        return self.wait_until(lambda: re.compile(pattern, re.DOTALL).search(self.text, self._seen), pattern)

    def wait_until(self, found: Callable[[], re.Match[str] | None], what: str = "") -> str:
        deadline = time.monotonic() + PATIENCE
        while (match := found()) is None:
            try:
                data = self.process.read_nonblocking(65536, max(0.0, deadline - time.monotonic()))
            except (pexpect.TIMEOUT, pexpect.EOF) as error:
                how = "the program ended" if isinstance(error, pexpect.EOF) else "waited in vain"
                raise AssertionError(f"{how}: {what!r} after {self.text[self._seen :].rstrip()!r}") from None
            self.raw += data
            self.display.show(data)
        part = self.text[self._seen : match.end()]
        self._seen = match.end() - match[0].endswith("\n")
        return part

    def end(self) -> int:
        """Waits for the program's end; its exit status."""
        self.process.expect(pexpect.EOF)
        self.process.wait()
        assert self.process.exitstatus is not None, f"ended by signal {self.process.signalstatus}"
        return self.process.exitstatus

    def close(self) -> None:
        try:
            self.process.close(force=True)
        except pexpect.ExceptionPexpect:  # it is killed, but even that may take longer than pexpect waits
            self.process.wait()


@contextmanager
def opened(command: Sequence[str], environment: dict[str, str]) -> Iterator[Terminal]:
    """A program on a terminal, ended with the block."""
    terminal = Terminal(command, environment)
    try:
        yield terminal
    finally:
        terminal.close()

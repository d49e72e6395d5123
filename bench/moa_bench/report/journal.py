"""What a run has measured so far, one line a cell, so that a killed run continues where it was.

State: a file of JSON lines, locked while it is open; the first line is the header, which says what the cells depend
on. Invariant: whatever the moment of a kill, all cells but the one that was being written are read again.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from moa_shared.errors import ConfigError, ConflictError, DataError, InternalError, MoaError

JsonObject = dict[str, Any]
Keep = Callable[[str, Callable[[], JsonObject]], JsonObject]
"""keep(key, measure): what was measured under this key; measured only if the journal has it not."""


def measure_afresh(key: str, measure: Callable[[], JsonObject]) -> JsonObject:
    """The `Keep` without a journal."""
    return measure()


@dataclass(frozen=True, slots=True)
class KeptCell:
    """A line of the journal: what was measured, and how many seconds that took."""

    measured: JsonObject
    seconds: float


class RunJournal:
    """The cells of one run, old and new. Its `keep` is a `Keep`.

    Args:
        path: of the file, which need not exist.
        header: what the cells depend on: suite, effort, commit, machine, level, model. A file with the same header is
            continued; one with another is put aside as PATH.old, and `outdated` names what differs.
        afresh: begin again in any case.

    Raises:
        ConflictError: another process writes this journal.
        DataError: a line before the last is not a cell.
        ConfigError: the file cannot be read or written.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        *,
        afresh: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self.outdated: list[str] = []
        self._header: JsonObject = json.loads(json.dumps(dict(header)))
        self._clock = clock
        self._cells: dict[str, KeptCell] = {}
        self._asked: set[str] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _lock(path)
        except OSError as error:
            raise ConfigError(
                f"The journal {path} cannot be used: {error.strerror}.", hint="Make its folder one that you may write."
            ) from error
        try:
            self._open(afresh)
        except MoaError:
            self._file.close()
            raise
        self.resumed = len(self._cells)
        self.resumed_s = sum(cell.seconds for cell in self._cells.values())

    def keep(self, key: str, measure: Callable[[], JsonObject]) -> JsonObject:
        """What was measured under `key`, as JSON has it; calls `measure` only if the journal has it not.

        Raises:
            InternalError: this run has asked for this key before.
            ConfigError: the journal cannot be written.
        """
        if key in self._asked:
            raise InternalError(f"The suite names two cells {key!r}.")
        self._asked.add(key)
        if key not in self._cells:
            began = self._clock()
            measured = measure()
            seconds = round(self._clock() - began, 3)
            line = json.dumps({"key": key, "measured": measured, "seconds": seconds})
            self._write(line)
            self._cells[key] = KeptCell(json.loads(line)["measured"], seconds)
        return self._cells[key].measured

    def close(self) -> None:
        """Let others have the file."""
        self._file.close()

    def discard(self) -> None:
        """Delete the file: the run is complete, and its result is written."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _open(self, afresh: bool) -> None:
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]  # what follows the last line break was being written at a kill
        lines = [] if afresh else [self._parse(number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if lines:
            header, ours = lines[0], self._header
            self.outdated = sorted(name for name in {*header, *ours} if header.get(name) != ours.get(name))
            if self.outdated:
                self.path.with_name(self.path.name + ".old").write_bytes(whole)
        if not lines or self.outdated:
            self._file.truncate(0)
            self._file.seek(0)
            self._write(json.dumps(self._header))
            return
        self._cells = {line["key"]: KeptCell(line["measured"], line["seconds"]) for line in lines[1:]}
        self._file.truncate(len(whole))
        self._file.seek(len(whole))

    def _parse(self, number: int, line: bytes) -> JsonObject:
        """A line: the header is the first one, all others are cells."""
        with suppress(ValueError):
            match json.loads(line):
                case {"key": str(), "measured": dict(), "seconds": int() | float()} as cell:
                    return dict(cell)
                case dict() as header if number == 1:
                    return dict(header)
        raise DataError(
            f"Line {number} of the journal {self.path} is damaged.",
            hint="Delete that line to measure its cell again, or start again with --afresh to measure all.",
        )

    def _write(self, line: str) -> None:
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(
                f"The journal {self.path} cannot be written: {error.strerror}.",
                hint="Make room for it and start again: what was measured before is kept.",
            ) from error


def _lock(path: Path) -> IO[bytes]:
    """The file, open for this process alone until it is closed."""
    file = path.open("a+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConflictError(
            f"Another moa-bench writes {path}.", hint="Let it end, or stop it, and start again: nothing is lost."
        ) from None
    file.seek(0)
    return file

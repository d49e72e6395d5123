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
from pathlib import Path
from typing import Any

from moa_shared.errors import ConfigError, ConflictError, DataError, InternalError, MoaError

from moa_bench.suite import JsonObject


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
        self._clock = clock
        self._cells: dict[str, JsonObject] = {}
        self._asked: set[str] = set()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
        except OSError as error:
            raise ConfigError(
                f"The journal {path} cannot be used: {error.strerror}.", hint="Make its folder one that you may write."
            ) from error
        try:
            self._open(json.loads(json.dumps(dict(header))), afresh)
        except MoaError:
            self._file.close()
            raise
        self.resumed = len(self._cells)
        self.resumed_s = sum(float(cell["seconds"]) for cell in self._cells.values())

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
            cell = {"key": key, "measured": measure(), "seconds": round(self._clock() - began, 3)}
            self._cells[key] = self._write(cell)
        found: JsonObject = self._cells[key]["measured"]
        return found

    def close(self) -> None:
        """Let others have the file."""
        self._file.close()

    def discard(self) -> None:
        """Delete the file: the run is complete, and its result is written."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _open(self, header: JsonObject, afresh: bool) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConflictError(
                f"Another moa-bench writes {self.path}.",
                hint="Let it end, or stop it, and start again: nothing is lost.",
            ) from None
        self._file.seek(0)
        text = self._file.read()
        whole = text[: text.rfind(b"\n") + 1]  # what follows the last line break was being written at a kill
        lines = [] if afresh else [self._parse(number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if lines:
            self.outdated = sorted(name for name in {*lines[0], *header} if lines[0].get(name) != header.get(name))
            if self.outdated:
                self.path.with_name(self.path.name + ".old").write_bytes(whole)
        continues = bool(lines) and not self.outdated
        self._file.truncate(len(whole) if continues else 0)
        if continues:
            self._cells = {line["key"]: line for line in lines[1:]}
        else:
            self._write(header)

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

    def _write(self, entry: JsonObject) -> JsonObject:
        """Appends a line; gives what will be read of it."""
        line = json.dumps(entry)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(
                f"The journal {self.path} cannot be written: {error.strerror}.",
                hint="Make room for it and start again: what was measured before is kept.",
            ) from error
        written: JsonObject = json.loads(line)
        return written

"""Runs suites: what is recorded before one starts, where its result and tables go, and how a killed run continues.

State: a SQLite file, locked while it is open, which has all cells that were measured before a kill, whenever that came.
"""

import json
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from moa_shared.errors import ConfigError, ConflictError, InternalError
from moa_shared.programs.progress import make_progress

from moa_bench.machine import gather_facts, large_page_shares, note_large_pages, split_cores
from moa_bench.report import checkout_root, to_json, write_text
from moa_bench.suite import Keep, Result, Suite, SuiteInputs, SuiteRun

_HEADER = ""  # the key of the header


class RunJournal:
    """The cells of one run, old and new. Its `keep` is a `Keep`.

    A file with the same header (efforts, commit, machine, level, model) is continued; one with another is put aside as
    PATH.old, and `outdated` names what differs. ConflictError: another process writes this journal. ConfigError: the
    file cannot be read or written.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], *, afresh: bool = False) -> None:
        self.path = path
        self.outdated: list[str] = []
        self._asked: set[str] = set()
        wanted: Result = json.loads(json.dumps(dict(header)))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
            old = self._read(_HEADER)
            self.outdated = sorted(name for name in {*old, *wanted} if old and old.get(name) != wanted.get(name))
            if self.outdated and not afresh:
                self.close()
                path.replace(path.with_name(f"{path.name}.old"))
                self._open()
            elif afresh:
                self.outdated = []
                self._database.execute("DELETE FROM cells")
            if not self._read(_HEADER):
                self._write(_HEADER, wanted)
            counted = "SELECT count(*) FROM cells WHERE key != ?"
            self.resumed = int(self._database.execute(counted, (_HEADER,)).fetchone()[0])
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
                hint = "Let it end, or stop it, and start again: nothing is lost."
                raise ConflictError(f"Another moa-bench writes {path}.", hint=hint) from None
            raise ConfigError(
                f"The journal {path} cannot be used: {getattr(error, 'strerror', None) or error}.",
                hint="Make its folder one that you may write, or start again with another --out.",
            ) from error

    def keep(self, key: str, measure: Callable[[], Result]) -> Result:
        """What was measured under `key`, as JSON has it; calls `measure` only if the journal has it not."""
        if key in self._asked:
            raise InternalError(f"The suite names two cells {key!r}.")
        self._asked.add(key)
        if not self._read(key):
            measured = measure()
            try:
                self._write(key, measured)
            except sqlite3.Error as error:
                hint = "Make room for it and start again: what was measured before is kept."
                raise ConfigError(f"The journal {self.path} cannot be written: {error}.", hint=hint) from error
        return self._read(key)

    def close(self) -> None:
        self._database.close()

    def discard(self) -> None:
        """Delete the file: the run is complete, and its result is written."""
        self.path.unlink(missing_ok=True)
        self.close()

    def _open(self) -> None:
        self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
        self._database.executescript("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT;")
        self._database.execute("CREATE TABLE IF NOT EXISTS cells (key TEXT PRIMARY KEY, measured TEXT)")

    def _read(self, key: str) -> Result:
        """A cell; empty: there is none."""
        row = self._database.execute("SELECT measured FROM cells WHERE key = ?", (key,)).fetchone()
        found: Result = {} if row is None else json.loads(row[0])
        return found

    def _write(self, key: str, measured: Result) -> None:
        self._database.execute("INSERT INTO cells VALUES (?, ?)", (key, json.dumps(measured)))


def run_suite(
    suite: Suite[Any],
    effort: Any,
    inputs: SuiteInputs,
    *,
    quick: bool,
    json_file: Path | None,
    keep: Keep = lambda key, measure: measure(),
) -> None:
    """Measures and publishes: to `json_file`, or without one, unless quick, into the checkout.

    Numpy's own products take one thread from here on.
    """
    head: Result = {"suite": suite.name, "quick": quick, "pinned": inputs.pin, "machine": gather_facts(checkout_root())}
    os.environ["OMP_NUM_THREADS"] = "1"
    server_cores, own_cores = split_cores(inputs.pin)
    head |= {"name": suite.name if suite.fixed else suite.name + inputs.suffix, "effort": effort}
    head |= {"level": inputs.level} if "level" in suite.takes else {}
    if inputs.shape is not None:
        from moa_bench.harness.random_model import random_model

        inputs = replace(inputs, model=str(random_model(inputs.shape, make_progress())))
    run = SuiteRun(**vars(inputs), server_cores=server_cores, own_cores=own_cores, keep=keep)
    module = import_module(suite.module)
    large_page_shares.clear()
    result = head | module.measure(effort, run)
    note_large_pages()
    result["machine"]["large_pages"] = [*large_page_shares]
    root = checkout_root()
    if str(json_file) == "-":  # it takes the tables' place
        click.echo(to_json(result), nl=False)
        return
    click.echo(module.render(result))
    if json_file is None and not quick and root is not None:
        json_file = root / "bench" / "results" / f"{result['name']}.json"
    if json_file is not None:
        write_text(json_file, to_json(result))


@dataclass(frozen=True, slots=True)
class RunRequest:
    inputs: SuiteInputs
    quick: bool
    out: Path | None  # folder for results, instead of the checkout; None: the checkout, or nowhere if quick
    afresh: bool = False  # begin again, whatever the journals hold

    @property
    def journals(self) -> Path:
        root = checkout_root()
        return (self.out or (root / "bench" / "results" if root is not None else Path())) / ".journal"

    def header(self, efforts: Mapping[str, Any]) -> dict[str, Any]:
        """What all cells of a run depend on: commit, machine, inputs, efforts; not the time or the load."""
        machine, inputs = gather_facts(checkout_root()), self.inputs
        facts = {key: machine[key] for key in ("commit", "cpu", "cores_allowed", "system", "python", "packages")}
        return facts | {
            **vars(inputs),
            "efforts": efforts,
            "quick": self.quick,
            "questions": str(inputs.questions.absolute()),
            "llama_cpp": str(inputs.llama_cpp),
            "drafters": {name: str(path.absolute()) for name, path in inputs.drafters.items()},
        }


def run_parts(name: str, parts: Sequence[Suite[Any]], request: RunRequest) -> None:
    """Runs parts in turn. What this run has measured before it was killed is not measured again."""
    chosen = {part.name: part.quick if request.quick else part.full for part in parts}
    efforts = {name: asdict(effort) for name, effort in chosen.items()}
    journal = RunJournal(request.journals / f"run-{name}.sqlite", request.header(efforts), afresh=request.afresh)
    try:
        note = make_progress().note
        if journal.outdated:
            others = ", ".join(journal.outdated)
            note(f"This begins again, because of another {others}; what was there is kept as {journal.path}.old")
        if journal.resumed:
            note(f"{journal.resumed} cells are there already.")
        for part in parts:
            journal.keep(part.name, partial(run_part, part, chosen[part.name], request, journal))
            note(f"{part.name}: done.")
        journal.discard()
    except (KeyboardInterrupt, SystemExit):
        make_progress().note("Stopped. What was measured is kept: start the same command again to continue.")
        raise
    finally:
        journal.close()


def run_part(part: Suite[Any], effort: Any, request: RunRequest, journal: RunJournal) -> dict[str, str]:
    json_file = None if request.out is None else request.out / f"{part.name}.json"
    run_suite(
        part,
        effort,
        part.inputs(request.inputs),
        quick=request.quick,
        json_file=json_file,
        keep=lambda key, measure: journal.keep(f"{part.name}: {key}", measure),
    )
    sys.stdout.flush()
    return {"part": part.name}

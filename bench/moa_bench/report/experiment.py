"""One run of a measurement: what every suite records before it starts, and where its result goes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from moa_bench.harness.cores import split_cores
from moa_bench.report.facts import gather_facts
from moa_bench.report.report import PARTS, checkout_root, publish, to_json, write_text


class Experiment:
    """One run of a suite: the cores it may use, and its result, which grows until it is published.

    Numpy's own products take one thread from here on.

    Args:
        suite: names the suite in the result.
        pin: give the server one core and everything else another.
        json_file: where the result goes instead of the checkout; None: the checkout, unless quick.
        fields: of the result, besides the machine's facts.

    Raises:
        ConfigError: the processes cannot be pinned here.
    """

    def __init__(self, suite: str, *, quick: bool, json_file: Path | None, pin: bool = False, **fields: Any) -> None:
        facts = gather_facts(checkout_root())
        os.environ["OMP_NUM_THREADS"] = "1"
        self.server_cores, self.own_cores = split_cores(pin)
        self.result: dict[str, Any] = {"suite": suite, "quick": quick, "pinned": pin, "machine": facts, **fields}
        self._quick = quick
        self._json_file = json_file

    @property
    def writes_file(self) -> bool:
        """Whether all results go into one file, or to standard output."""
        return self._json_file is not None

    def save(self) -> None:
        """Write the result so far to the file of --json, if there is one: an interrupted run keeps what it found."""
        if self._json_file is not None and str(self._json_file) != "-":
            write_text(self._json_file, to_json(self.result))

    def publish(self, tables: str, *, name: str | None = None, page: str = PARTS) -> None:
        """Write the result and its tables to where they belong, see `publish`.

        Args:
            name: of the file of results and of the page's section; None: the suite's.

        Raises:
            MoaError: a file cannot be written.
        """
        section = name or self.result["suite"]
        publish(section, self.result, tables, quick=self._quick, json_file=self._json_file, page=page)

    def picture_path(self, name: str) -> Path | None:
        """Where a picture of the result goes; None: the result is not published in the checkout."""
        root = checkout_root()
        if self._quick or self._json_file is not None or root is None:
            return None
        return root / "docs" / "img" / f"{name}.png"

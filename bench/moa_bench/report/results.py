"""Reads results, and what they depend on."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError

from moa_bench.report.report import processor


@dataclass(frozen=True, slots=True)
class ResultOrigin:
    """What the figures of a result depend on; None: it does not say, or nothing was measured but computed."""

    commit: str | None
    machine: str | None
    level: str | None
    model: str | None
    measured: str | None

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> "ResultOrigin":
        machine = result.get("machine") or {}
        cpu = processor(machine) if "cpu" in machine else None
        time = str(machine["time"])[:10] if "time" in machine else None
        return cls(machine.get("commit"), cpu, result.get("level"), result.get("target"), time)


def read_result(path: Path) -> dict[str, Any]:
    """A result as `moa-bench` writes it.

    Raises:
        NotFoundError: no such file.
        DataError: it is not a result.
    """
    try:
        result = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"There is no result {path}.", hint="Measure first: moa-bench run SUITE.") from None
    except (ValueError, OSError):
        raise DataError(f"{path} cannot be read as a result.", hint="Name a file that moa-bench has written.") from None
    if not isinstance(result, dict) or "suite" not in result:
        raise DataError(f"{path} is not a result of moa-bench.", hint="Name a file that moa-bench has written.")
    return result


def read_folder(folder: Path) -> dict[str, dict[str, Any]]:
    """All results of a folder by name, in the order of their names.

    Raises:
        MoaError: as `read_result`.
    """
    return {path.stem: read_result(path) for path in sorted(folder.glob("*.json"))}
